"""A run's folder: what lies in it, which process owns it, and which states it goes through.

Its modules:

    folder          the names and formats of the files
    records         the records in these files, read, checked and written
    lifecycle       states, failure kinds, and the table of transitions
    transitions     every change of a run's state
    evaluations     the reward of each response of each evaluation
    claim           which process owns the run
    stop_request    the request to a running attempt to stop
    launch_record   files that all runs of one launch share
    code            the record of the code and data that made a run, and how records differ
    archive         moving a run's folder aside
    catalog         the experiments and runs that a user's names refer to
"""
