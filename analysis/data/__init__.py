"""Finished runs as arrays, read from their folders."""
