"""What the tests have run, for README's table.

    RLSWEEP_TESTED=FILE make test-runs test-programs test-cluster    # each tier that passes adds a line
    python -m tests.tested check FILE    # fails if README lists something that these tiers have not run
    python -m tests.tested write FILE    # keeps what they ran in tests/tested.json, and writes README's table

A line has the markers (tests/needs.py) of which tests have passed, and what they ran on. A tier with a failure leaves
no line. README's table can therefore only grow by tests that pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT, README = Path(__file__).with_suffix(".json"), ROOT / "README.md"
# Taken out of the environment, so that what tests start adds nothing.
_FILE = os.environ.pop("RLSWEEP_TESTED", None)
BEGIN, END = "<!-- tests/tested.json, by `python -m tests.tested write` -->\n", "<!-- end -->"

#: By marker: what has been run, and the programs and packages of which the version counts.
RUN = {
    "train": ("training in one process: every method, every target, resumed and interrupted", ("verl", "torch")),
    "processes": ("the local pool: workers killed, frozen and out of disk or memory", ()),
    "namespaces": ("generated code in a sandbox: attacks, forged verdicts, floods", ()),
    "puzzles": ("the task reasoning_gym with its package", ("reasoning-gym",)),
    "slurm": ("SLURM: four nodes simulated on one machine, with faults", ("slurmctld",)),
    "ray": ("Ray, and verl's V1 trainer under Ray: several nodes simulated on one machine", ("ray",)),
    "browser": ("the report in a browser", ("chromium",)),
    "latex": ("the report as a paper", ("pdflatex",)),
}
#: What no test can run where these ran, with what stands in for it.
NOT_RUN = (
    ("GPUs", "CPUs; `make test-gpu` is for GPUs, and [GPUs](docs/gpu.md#what-has-been-run) has what was run on one"),
    ("SGLang, Megatron", "nothing"),
    ("vLLM on a GPU", "vLLM on a CPU, alone and as the server of `trainer=verl_ray`: `make test-vllm`"),
    ("the pretrained models of `conf/model`", "random twins of their architectures with two layers"),
    ("the included experiments at full scale", "two steps of every method and target on the twins; `scale=tiny`"),
    ("several real machines", "nodes simulated on one"),
)


def add(file: Path, markers: Iterable[str], **more: Any) -> None:
    """Note that tests of these markers have passed; more: by marker, what they ran with beside the versions."""
    names = sorted(set(markers) & set(RUN))
    versions = {name: [one for needed in RUN[name][1] if (one := _version(needed))] for name in names}
    line = {"with": {**versions, **more}, "on": machine()}
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def machine() -> dict[str, str]:
    """What these tests run on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def read(file: Path) -> dict[str, Any]:
    """What was run: `run` has each marker with what it ran with, `on` the machine."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found: dict[str, list[str]] = {}
    for line in lines:
        found |= line["with"]
    return {"run": dict(sorted(found.items())), "on": lines[-1]["on"] if lines else {}}


#: The option with which a program says its version, and what it is called.
_PROGRAMS = {
    "slurmctld": ("-V", "SLURM"),
    "chromium": ("--version", "Chromium"),
    "pdflatex": ("--version", "pdfTeX"),
}


def _version(name: str) -> str | None:
    """`NAME VERSION` of a program, or of a package; None where it cannot be had."""
    if name not in _PROGRAMS:
        with suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
        return None
    option, title = _PROGRAMS[name]
    try:
        said = subprocess.run([name, option], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\d[\w.]*", said)
    return f"{title} {found.group()}" if found else None


def table(kept: Mapping[str, Any]) -> str:
    """README's table."""
    on = kept["on"]
    lines = [
        f"On {on['system']} with Python {on['python']}, without a GPU. A row stands for tests that all passed:",
        "",
    ]
    lines += ["| run by the tests | with |", "| --- | --- |"]
    lines += [
        f"| {what} | {', '.join(kept['run'][marker])} |" for marker, (what, _) in RUN.items() if marker in kept["run"]
    ]
    lines += ["", "| not run by any test | instead |", "| --- | --- |"]
    lines += [f"| {what} | {instead} |" for what, instead in NOT_RUN]
    return "\n".join(lines) + "\n"


def shown() -> str:
    """README's table as it stands there."""
    return README.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["check", "write"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    found = read(given.file)
    if given.action == "check":
        kept = json.loads(KEPT.read_text())
        gone = [marker for marker in kept["run"] if marker not in found["run"]]
        for marker in gone:
            print(f"README.md says that the tests run {RUN[marker][0]}; none with the marker {marker} passed here")
        return int(bool(gone))
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    before, begin, rest = README.read_text().partition(BEGIN)
    README.write_text(before + begin + table(found) + rest[rest.index(END) :])
    return 0


def note(markers: Iterable[str], **more: Any) -> None:
    """`add` to the file that the environment named, if it named one."""
    if _FILE:
        add(Path(_FILE), markers, **more)


if __name__ == "__main__":
    sys.exit(main())
