"""One launch: plan, freeze, run what is missing until every run has ended, and report.

Its modules:

    sweeper        the entry point from Hydra
    sweep          one launch from its plan to its report
    code_changes   what a launch does with runs that were made by other code
    reconciler     hands missing runs to the scheduler and waits for them
    progress       what the user sees meanwhile
"""
