"""The commands of `python -m launcher`: one module for each, of the same name.

A module defines HELP, `arguments(parser)` and `run(given)`, which returns the exit code: 0 fine, 1 some runs failed, 2
usage or an invalid plan (`errors.Usage` becomes 2). Every command has `--json`. At its top, a module imports only the
standard library and light modules of the launcher. It imports others where it needs them, so that the commands that
only read stay fast.

Its modules:

    plan         show the runs that an experiment would execute
    status       show the states of runs, their metrics, remaining time and failures
    runs         list runs
    logs         show why a run failed, and the end of its output
    cancel       stop runs for good
    retry        run failed, diverged and cancelled runs again
    rerun        archive runs and run them anew
    show         print a run's frozen configuration
    reproduce    print the commands that repeat a run, or repeat it
    evaluate     evaluate a run's checkpoint again, on more prompts or other data
    export       write a run's trained model as a folder that transformers loads
    sync         send finished runs to W&B
    gc           find and delete files that are no longer needed
    delete       delete an experiment, with the runs that no other has
    completion   print a script for the completion of a shell
    selection    the names and filters that several commands share
"""
