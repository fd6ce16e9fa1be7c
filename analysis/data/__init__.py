"""Finished runs as arrays, read from their folders.

Its modules:

    sweep        an experiment: its plan.json and the folders of its runs
    metric_log   the metrics log of a run, bad lines left out and counted
    histograms   the histograms of a run
    attempts     which lines of a log count when several attempts wrote it
    derived      metrics that are computed from recorded ones
    cells        from runs to one number for each seed and cell
    normalized   scores normalised by declared reference scores
    selection    each method at its best level of a factor, chosen on other seeds
    run_values   the summaries of every run
    mixed_code   whether the runs were made by the same code
    cache        parsed logs as Arrow files, so that the next report reads them faster
"""
