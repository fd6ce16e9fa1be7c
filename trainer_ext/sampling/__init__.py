"""Optimal sampling: the geometric family between two policies, where to stand in it, and how to draw from it."""
