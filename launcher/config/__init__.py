"""Configurations: composed, and identified by their content.

Its modules:

    hydra_compose     composition of conf/ by Hydra's rules
    identity          the hash that identifies a run
    content           the local files and folders that a configuration names, by content
    installed_parts   what other installed packages bring
"""
