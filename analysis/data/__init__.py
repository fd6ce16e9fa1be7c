"""Finished runs as arrays: read from their folders, by run, cell and metric."""
