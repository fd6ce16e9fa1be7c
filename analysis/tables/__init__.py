"""The tables of a report.

Its modules:

    comparison   the tables that compare an experiment's groups
    table        a table: displayed cells, the numbers behind them, and its files
    wording      the words for outcomes and their reasons
"""
