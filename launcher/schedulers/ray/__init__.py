"""`cluster=ray`: each run a task of a Ray cluster."""
