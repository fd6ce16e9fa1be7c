"""From the command line to frozen runs: what an experiment asks for, checked as a whole before anything is written.

Its modules:

    planner           from overrides to a plan, or to all of its problems
    overrides         the overrides of the command line
    experiment_spec   the section `experiment`
    design            the cells that factors and groups span
    variants          the compositions that several runs share
    schema            what YAML files declare: keys, types and ranges
    run_specs         the runs: factors, cells and seeds, composed, checked, identified
    continuation      which runs continue a finished run of fewer steps
    hypotheses        whether the seeds can decide the hypotheses
    preregistration   the record of when hypotheses were declared
    cost              what a plan costs in device-hours, time and storage
    clusters          the sections `cluster` and `budget`
    plan              the records of a plan
    freeze            writing a plan to run folders
"""
