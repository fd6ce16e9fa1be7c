"""`cluster=slurm`: runs as job arrays, and back by the queue and the state files."""
