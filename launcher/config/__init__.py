"""Configurations: composed, and identified by their content."""
