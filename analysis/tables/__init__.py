"""The tables of a report.

Its modules:

    comparison   the tables that compare an experiment's groups
    table        a table: displayed cells, and the numbers behind them
    formats      a table as text, Markdown, LaTeX and CSV
    wording      the words for outcomes and their reasons
"""
