"""How runs get done: plan, freeze, schedule, observe. It contains no algorithm and no statistics.

Its rooms, the highest rank first. A module imports only from its own room and from rooms below it (docs/code.md):

    __main__      the program `python -m launcher`
    commands      one module for each command: plan, status, logs and others
    campaign      experiments in stages, which the hypotheses of earlier stages let start
    execution     one launch: plan, freeze, run what is missing until every run has ended, report
    schedulers    where runs go: local, batch systems such as slurm, ray, and Hydra's launcher plugins
    planning      from the command line to frozen runs, checked before anything is written
    worker        one attempt at a frozen run; the only room that calls the application's work
    status        the states of an experiment's runs, counted and printed
    tracking      W&B and TensorBoard
    config        composing and identifying configurations
    run           the format of a run's folder, its states, and the ownership of a run
    nodes         the nodes of a run, and a Ray over those of a SLURM job
    application   what is asked of an application, and calls of a user's code in another process
    errors        the problems of a plan, and errors in the use of a command
    secrets       masking secrets
    output        standard output that cannot be written
    files         atomic writes, YAML and JSON lines
    text          text for people: counts, durations, suggestions for misspelt names
    project       the project's folder, and the exit codes
"""
