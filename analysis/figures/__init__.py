"""Figures: one module a kind, on a shared canvas."""
