"""Formats of logs, one a module. Each registers itself with `analysis.sources.source.source`."""
