"""Takes the pictures of this folder: `python docs/images/take.py FOLDER`, with an empty folder for the runs.

It runs the commands in a terminal of their own, 100 columns wide, and writes what the terminal then shows as SVG. Look
at each picture before you commit it.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import sys
import time
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
_CONTROL = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|\x1b\][^\x07]*\x07")


def screen(output: str) -> list[str]:
    """The lines that a terminal shows after an output: lines that were written over are gone, colours stay."""
    lines, row, place = [""], 0, 0
    while place < len(output):
        found = _CONTROL.match(output, place)
        if found:
            place = found.end()
            if found[2] == "A":
                row = max(0, row - int(found[1] or 1))
            elif found[2] == "K":
                lines[row] = ""
            elif found[2] == "m":
                lines[row] += found[0]
            continue
        letter, place = output[place], place + 1
        if letter == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif letter == "\r":
            lines[row] = "" if output[place : place + 1] != "\n" else lines[row]
        else:
            lines[row] += letter
    return lines


def run(command: list[str], folder: Path, until: str | None = None) -> str:
    """What a command writes to a terminal, at its end, or some moments after it wrote `until`."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
        os.execvpe(sys.executable, [sys.executable, *command], {**os.environ, **size, "PYTHONPATH": str(folder)})
    output, seen = b"", None
    while seen is None or time.monotonic() < seen + 4:
        if not select.select([terminal], [], [], 0.5)[0]:
            continue
        try:
            output += os.read(terminal, 65536)
        except OSError:  # its end
            break
        if until is not None and seen is None and until in output.decode(errors="replace"):
            seen = time.monotonic()
    if seen is not None:
        shown = output
        while True:  # let it finish
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:
                break
        output = shown
    os.waitpid(child, 0)
    return output.decode(errors="replace")


def save(name: str, command: str, output: str) -> None:
    """Write a picture of a command and what the terminal shows after it."""
    lines = [line for line in screen(output) if line.strip()]
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
    for name, words, until in (
        ("plan", "-m launcher plan experiment=learning_rates", None),
        ("live", "launch.py -m experiment=learning_rates", "Dr_GRPO lr=0.0003 seed 0"),
        ("status", "-m launcher status learning_rates", None),
        ("failure", "-m launcher logs learning_rates", None),
    ):
        save(name, f"python {words}", run(words.split(), folder, until))


if __name__ == "__main__":
    main()
