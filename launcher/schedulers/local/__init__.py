"""`cluster=local`: a pool of warm workers on this machine."""
