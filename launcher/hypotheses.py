"""The hypotheses of an experiment: are they sound, and when were they declared: multirun/<experiment>/hypotheses.json.

    {"format": 1, "declarations": [{"hash", "time", "planned", "done", "hypotheses"}, ...]}

The first declaration is written with the first submission and never changed; other hypotheses later are kept beside it
as amendments. `done` holds the ids of the experiment's runs that were done by then, so that a reader can tell what was
declared before there was a result; `planned` counts them all; `hash` is of the canonical hypotheses.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import claim, identity
from launcher import run as folders
from launcher.compose import Composed, lookup
from launcher.problem import Problem

FORMAT = 1
NAME = "hypotheses.json"
HYPOTHESIS = "hypothesis"  # the configuration group: conf/hypothesis
_AT = "analysis.hypotheses"
_REFUSAL = re.compile(r"(?P<key>analysis\S*) (?:= (?P<value>.+?)[:;] )?(?P<rule>.*)", re.DOTALL)


def problems(
    analysis: Mapping[str, Any], groups: Sequence[str], baseline: str | None, composed: Composed, where: str
) -> list[Problem]:
    """What the report would refuse of an experiment's hypotheses, before anything runs.

    analysis: the section, checked by its schema; where: the experiment's file, blamed for what no file of the group
    `hypothesis` says.
    """
    headless = [file for file in composed.files if file.path.startswith(f"{HYPOTHESIS}/") and file.package != _AT]
    if headless:
        rule = "the file does not begin with its header"
        return [
            Problem(f"conf/{file.path}.yaml", f"# @package {_AT}", None, rule, "make this the file's first line")
            for file in headless
        ]
    files = {file.path: file.content for file in composed.files if file.package == _AT}
    found = [
        Problem(f"conf/{path}.yaml", f"{_AT}.{name}", None, f"conf/{other}.yaml declares {name} too", "rename one")
        for place, (path, content) in enumerate(files.items())
        for other in list(files)[:place]
        for name in content
        if name in files[other]
    ]
    if found or analysis.get("hypotheses") in (None, {}):
        return found
    said = _refusal(json.dumps({"analysis": analysis, "groups": list(groups), "baseline": baseline}))
    if said is None:
        return []
    match = _REFUSAL.fullmatch(said)
    key, value, rule = match.group("key", "value", "rule") if match else (_AT, None, said)
    name = key.removeprefix(f"{_AT}.").partition(".")[0]
    owners = [path for path, content in files.items() if lookup(content, name)[0]]
    fix = f"correct it, or leave it out: {_AT}.{name}=null"
    if owners:
        others = ",".join(Path(path).name for path in files if path != owners[0])
        where, fix = f"conf/{owners[0]}.yaml", f"{fix}, or with the rest of its file: {HYPOTHESIS}=[{others}]"
    return [Problem(where, key, value, rule, fix)]


@functools.lru_cache(maxsize=256)
def _refusal(asked: str) -> str | None:
    """Why the analysis refuses what it is asked; None: it does not. It judges in a process of its own, as it reports:
    no statistics in the launcher."""
    command = [sys.executable, "-m", "analysis.check"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip() or None


def declare(folder: Path, hypotheses: Mapping[str, Any] | None, planned: int, done: Sequence[str]) -> None:
    """Keep an experiment's hypotheses unless they are kept already. folder: multirun/<experiment>, which exists.

    ValueError: the file is not one of this format.
    """
    if not hypotheses:
        return
    path = folder / NAME
    digest = identity.content_hash(identity.canonical_json(hypotheses))
    with claim.locked(folder):  # of two launches at once neither loses the other's declaration
        kept = _read(path)
        if any(one.get("hash") == digest for one in kept):
            return
        now = {"hash": digest, "time": time.time(), "planned": planned, "done": list(done), "hypotheses": hypotheses}
        folders.write_json(path, {"format": FORMAT, "declarations": [*kept, now]})


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("declarations"), list):
        raise ValueError(f"not a record of hypotheses in format {FORMAT}")
    found: list[dict[str, Any]] = value["declarations"]
    return found
