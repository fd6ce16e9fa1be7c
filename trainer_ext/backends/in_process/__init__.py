"""verl's losses and optimizer in one process, with one model and no servers."""
