"""python -m launcher completion: the script that makes a shell complete `rlsweep`.

    bash: eval "$(rlsweep completion bash)"     in ~/.bashrc
    zsh:  eval "$(rlsweep completion zsh)"      in ~/.zshrc, after compinit
    fish: rlsweep completion fish | source      in ~/.config/fish/config.fish

A shell completes a word, and `python -m launcher` is three: `rlsweep` is the same command. Exit code: 0.
"""

from __future__ import annotations

import argparse
import json

from launcher.project import EXIT_FINE

HELP = "print the script that makes a shell complete `rlsweep`"
SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=SHELLS)


def run(given: argparse.Namespace) -> int:
    """JSON: shell, script."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["rlsweep"], shell=given.shell)
    print(json.dumps({"shell": given.shell, "script": script}) if given.json else script)
    return EXIT_FINE
