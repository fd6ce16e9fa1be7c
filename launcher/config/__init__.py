"""Configurations: composed, checked, merged with verl's tree, and identified by their content."""
