"""`cluster=ray`: each run is a task of a Ray cluster."""
