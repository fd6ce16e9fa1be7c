"""One module a command: HELP, `arguments(parser)` and `run(given)`, which returns the exit code.

Exit codes: 0 fine, 1 some runs failed, 2 usage or an invalid plan (`errors.Usage` becomes 2). Every command has
`--json`. At its top a module imports only the standard library and light modules of the launcher, and the others where
they are needed, so that the commands that only read stay fast.
"""
