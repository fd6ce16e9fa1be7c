"""One launch: plan, freeze, run what is missing until every run has ended, and report."""
