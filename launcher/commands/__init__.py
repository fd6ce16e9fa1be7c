"""The commands of `python -m launcher`: one module for each, of the same name.

A module defines HELP, `arguments(parser)` and `run(given)`, which returns the exit code: 0 fine, 1 some runs failed, 2
usage or an invalid plan (`errors.Usage` becomes 2). Every command has `--json`. At its top, a module imports only the
standard library and light modules of the launcher. It imports others where it needs them, so that the commands that
only read stay fast.
"""
