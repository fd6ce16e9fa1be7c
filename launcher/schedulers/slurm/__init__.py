"""`cluster=slurm`: runs as job arrays. The queue and the state files tell how they are.

Its modules:

    cluster         checks of what SLURM would refuse, and the start of the scheduler
    scheduler       submits job arrays and watches them
    arrays          a job array: the runs of one resource shape
    queue           what squeue and sacct know of jobs
    task            what executes a run on a node
    code_snapshot   a copy of the code, so that later edits do not change waiting runs
"""
