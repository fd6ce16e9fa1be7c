"""One attempt at a frozen run, in a process. The only room that calls the trainer.

Its modules:

    __main__     the program `python -m launcher.worker RUN_FOLDER`
    worker       claims the run, trains, and records how the attempt ended
    attempt      what the trainer sees: logs, checkpoints, the request to stop
    prefix       takes over the first steps of the run that a run continues
    preflight    whether a run could start: its task, its prompts, its memory
    export       writes a run's trained model as a folder that transformers loads
    process      starts a worker as a process
    warm         imports slow modules once for all workers of a machine
    stall        notices that an attempt makes no step, and writes the stacks of its processes
    loaded       the modules that this process has loaded, with their content
    provenance   commit, uncommitted changes, packages, machine, devices, command
"""
