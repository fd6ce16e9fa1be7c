"""How the runs of a sweep stand: read from their folders, counted, and printed as tables."""
