"""Runs as jobs of a batch system, whichever it is (docs/schedulers.md)."""
