"""The present standing of a sweep's runs: read from their folders, counted, and printed as tables.

Its modules:

    standing     counts by state, last metric, remaining time, failures
    other_code   runs that were made by other code than the present one
    index        a cache of what `status` needs of each run folder
    tables       the tables that commands print for people
"""
