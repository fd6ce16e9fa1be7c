"""Where runs go: a small protocol, and a folder or module for each scheduler that implements it."""
