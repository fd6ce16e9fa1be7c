"""One module a command: HELP, `arguments(parser)` and `run(given)`, which returns the exit code.

Exit codes: 0 fine, 1 some runs failed, 2 usage or an invalid plan (`errors.Usage` becomes 2). Every command has
`--json`. A module imports at its top what the standard library and launcher.run offer; the rest where it is needed, so
that the commands that only look stay quick.
"""
