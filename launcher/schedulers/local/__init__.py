"""`cluster=local`: a pool of warm workers on this machine.

Its modules:

    cluster   checks of the plan, and the start of the pool
    pool      the pool: forks of one warm server
    limits    which runs must stop, by time or memory
    memory    how much memory the machine and its processes have
"""
