"""Takes the pictures of this folder: `python docs/images/take.py FOLDER`, with an empty folder for the runs.

It runs the commands in a terminal of their own, 100 columns wide, and writes what the terminal then shows as SVG. Look
at each picture before you commit it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLUMNS, ROWS = 100, 40
EXPERIMENT = """# @package _global_
experiment:
  name: learning_rates
  groups: {GRPO: {method: c0_grpo}, Dr_GRPO: {method: dr_grpo}}
  baseline: GRPO
  factors: {verl.actor_rollout_ref.actor.optim.lr: [3.0e-4, 1.0e+20]}
  seeds: [0, 1]
trainer: {steps: 60}
"""


def run(command: list[str], folder: Path) -> str:
    """What a command writes to a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
        os.execvpe(sys.executable, [sys.executable, *command], {**os.environ, **size, "PYTHONPATH": str(folder)})
    output = b""
    with contextlib.suppress(OSError):  # its end
        while part := os.read(terminal, 65536):
            output += part
    os.waitpid(child, 0)
    return output.decode(errors="replace")


def save(name: str, command: str, output: str) -> None:
    """Write a picture of a command and what the terminal shows after it."""
    lines = [line for line in output.splitlines() if line.strip()]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere)
        console.print(f"[bold]$ {command}[/bold]", highlight=False)
        for line in lines:
            console.print(Text.from_ansi(line.replace(str(Path.cwd()), "/home/user/rlsweep")))
        (HERE / f"{name}.svg").write_text(console.export_svg(title="rlsweep"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve() / "rlsweep"
    left_out = shutil.ignore_patterns(".*", "multirun", "tests", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=left_out)
    os.chdir(folder)
    (folder / "conf/experiment/learning_rates.yaml").write_text(EXPERIMENT)
    plan = "-m launcher plan experiment=learning_rates"
    save("plan", f"python {plan}", run(plan.split(), folder))
    run(["launch.py", "-m", "experiment=learning_rates"], folder)
    for name, words in (
        ("status", "-m launcher status learning_rates"),
        ("failure", "-m launcher logs learning_rates"),
    ):
        save(name, f"python {words}", run(words.split(), folder))


if __name__ == "__main__":
    main()
