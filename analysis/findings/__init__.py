"""What the runs of an experiment show: estimates, comparisons and verdicts, as values without sentences.

Its modules:

    study              every group against the baseline, for each measure; what was declared before results
    verdicts           the verdict on each declared hypothesis
    outcomes           the possible outcomes and their reasons
    worst_case         comparisons with the excluded runs at extreme values
    ratios             ratios of two groups, paired by seed; for times, speed-ups
"""
