"""Where runs go: one small protocol, one module a scheduler."""
