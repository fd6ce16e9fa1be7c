"""After the runs: which files may be deleted, and whether a run can be repeated."""
