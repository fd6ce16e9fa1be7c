"""What the runs of an experiment show: estimates, comparisons, verdicts. Values, not pages."""
