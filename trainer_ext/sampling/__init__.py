"""Optimal sampling: the geometric family between two policies, the choice of alpha, and sampling. Pure functions."""
