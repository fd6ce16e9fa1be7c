"""What the runs of an experiment show: estimates, comparisons and verdicts, as values without sentences."""
