"""The present standing of a sweep's runs: read from their folders, counted, and printed as tables."""
