"""After the runs: deleting files, and repeating a run.

Its modules:

    garbage     files that are no longer needed
    reproduce   whether a run can be repeated, and whether a repetition has the same metrics
"""
