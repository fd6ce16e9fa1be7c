"""`cluster=ray`: each run is a task of a Ray cluster.

Its modules:

    cluster     checks of the plan, and the start of the scheduler
    driver      the process that speaks with Ray
    task        what executes a run on a node
    placement   what runs request, and whether a node can ever meet it
    on_slurm    a Ray cluster over the nodes of a SLURM job
"""
