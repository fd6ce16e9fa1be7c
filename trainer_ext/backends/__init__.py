"""Where verl runs: one folder a backend."""
