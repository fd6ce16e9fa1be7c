"""After the runs: what may be deleted, and whether a run can be done again."""
