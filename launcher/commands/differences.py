"""The first difference between a run and its repetition: the step, and what differs there first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher import files
from launcher.run import evaluations
from launcher.run.folder import histograms_path, metrics_path, read_state, read_summary, responses_path
from launcher.run.lifecycle import RunState
from launcher.worker.certified import CHECKPOINT, DATA, TRACE, digests, timeless

# Metrics that depend on a clock or on the machine's load.
_CLOCK = ("time", "attempt")
_CLOCK_GROUPS = ("cost/", "timing_s/", "timing_per_token_ms/", "perf/", "speculative/speedup")
#: Of several differences in a step, the first of these is named: it causes the others. `*`: what is not listed.
ORDER = ("data order", "prompts", "random state", "weights", "optimizer", "*", "end", "log", "metrics", "summary")
_NAMES = {DATA: "data order", "random": "random state"}
# Files of a Hydra program that have times in them. What they log is compared as the run's metrics.
_LOGS = (".log", ".out", ".err", ".csv", ".jsonl", ".yaml")


class Difference(NamedTuple):
    """step: the first that differs; what: of ORDER, a key of a trace, a log or a file; detail: in words."""

    step: int
    what: str
    detail: str

    def __str__(self) -> str:
        return f"from step {self.step} on, first in the {self.what}: {self.detail}"


def first_difference(then: Path, now: Path, only: Collection[str] = ()) -> Difference | None:
    """The first difference of a run's repetition in the folder `now`; None: it is equal to the last bit.

    only: the names of what is compared; empty: all of it.
    """
    found = (one for one in _differences(then, now) if not only or one.what in only)
    return min(found, key=lambda one: (one.step, ORDER.index(one.what if one.what in ORDER else "*")), default=None)


def metrics(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a run's metric log, without what depends on a clock."""
    for record in files.json_lines(metrics_path(folder)):
        yield {key: value for key, value in record.items() if key not in _CLOCK and not key.startswith(_CLOCK_GROUPS)}


def records(folder: Path, end: int = 0) -> dict[tuple[int, str], list[Any]]:
    """What is compared of a run, by step and name; of a done run also what it has left, as of the step `end`."""
    found: dict[tuple[int, str], list[Any]] = defaultdict(list)
    for line in files.json_lines(folder / TRACE):
        for key in line.keys() - {"step", CHECKPOINT}:
            values = found[line["step"], _NAMES.get(key, key)]
            values += [] if line[key] in values else [line[key]]  # a step that is repeated is traced again
    for row in metrics(folder):
        found[row["step"], "metrics"].append(row)
    for path in (histograms_path(folder), responses_path(folder)):
        for line in files.json_lines(path):
            found[line["step"], path.stem].append({**line, "attempt": 0})
    for step in evaluations.paths(folder):
        found[step, "evaluations"].append(evaluations.read(folder, step))
    if read_state(folder).state == RunState.DONE:
        found[end, "summary"].append(timeless(read_summary(folder)))
        for name, digest in digests(folder / "job").items():
            if not name.endswith(_LOGS) and "tfevents" not in name and not name.startswith("wandb/"):
                found[end, name].append(digest)
    return found


def _differences(then: Path, now: Path) -> Iterator[Difference]:
    end, last = (max((row["step"] for row in metrics(folder)), default=0) for folder in (then, now))
    old, new, state = records(then, end), records(now, end), read_state(now)
    if state.state != RunState.DONE:
        yield Difference(min(last + 1, end), "end", f"it ended as {state.state} ({state.message})")
    for step, what in old.keys() | new:
        before, after = old.get((step, what), []), new.get((step, what), [])
        if what != "metrics" and (step, "metrics") in old.keys() - new:
            continue  # of a step that is not logged, nothing else is there either
        if what == "metrics" and len(before) != len(after):
            yield Difference(step, "log", f"it has {len(after)} lines of this step in place of {len(before)}")
        elif what == "metrics":
            for a, b in zip(before, after, strict=True):
                for key in [key for key in {**a, **b} if repr(a.get(key)) != repr(b.get(key))]:
                    yield Difference(step, what, f"{key} was {a.get(key)!r} and is {b.get(key)!r}")
        elif before != after:
            shown = f"{str(after)[:70]} in place of {str(before)[:70]}" if what == ORDER[0] else "it differs"
            yield Difference(step, what, shown if after else "it is not there")
