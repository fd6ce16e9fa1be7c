"""`cluster=slurm`: runs as job arrays. The queue and the state files tell how they are."""
