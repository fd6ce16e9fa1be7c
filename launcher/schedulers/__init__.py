"""Where runs go: a small protocol, and a folder or module for each scheduler that implements it.

Its modules:

    protocol         what a scheduler must do
    registry         the schedulers that `cluster=` can name
    local            a pool of warm workers on this machine
    slurm            job arrays
    ray              tasks of a Ray cluster
    hydra_launcher   Hydra's launcher plugins
"""
