"""A whole sweep: plan it, run what is missing until every run has ended, and report."""
