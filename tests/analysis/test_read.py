"""Files as power cuts, resumes and divergences leave them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data import metric_log
from analysis.data import sweep as sweep_module
from analysis.data.metric_log import Curves, parse
from analysis.data.normalized import added
from analysis.data.sweep import BadPlan, Sweep, read_sweep
from analysis.tables.comparison import remark
from launcher.run.folder import metrics_path, run_folder
from launcher.run.lifecycle import State, write_state
from tests.analysis.conftest import Lines, MakeSweep, refusal, replan
from tests.wording import Worded


def written(tmp_path: Path, *lines: str, end: str = "\n") -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(("\n".join(lines) + end).encode(errors="surrogateescape"))
    return path


def read_curves(path: Path, shown: str = "metrics.jsonl") -> Curves:
    with path.open("rb") as log:
        return parse(log, shown)


def test_torn_last_line_is_dropped_counted_and_named(tmp_path: Path) -> None:
    log = written(tmp_path, '{"step": 1, "a": 1}', '{"step": 2, "a": 0.', end="")
    curves = read_curves(log, "runs/x/metrics.jsonl")
    assert curves.steps.tolist() == [1] and curves.bad_count == 1
    assert (curves.bad[0].file, curves.bad[0].line, curves.bad[0].torn) == ("runs/x/metrics.jsonl", 2, True)


@pytest.mark.parametrize(
    "line",
    ["garbage", "[1, 2]", "3", '{"a": 1}', '{"step": "x"}', '{"step": 1.5}', '{"step": -1}', '{"step": NaN}',
     "\x00\x00", '{"step": true}', '{"step": 2, "attempt": 0}', "[" * 5000, '{"step": 2, "\udcff": 1}'],
)  # fmt: skip
def test_bad_line_is_left_out_and_named(tmp_path: Path, line: str) -> None:
    curves = read_curves(written(tmp_path, '{"step": 1, "a": 1}', line, '{"step": 3, "a": 3}'))
    assert curves.steps.tolist() == [1, 3]
    assert curves.bad_count == 1 and curves.bad[0].line == 2 and not curves.bad[0].torn


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("lines", "steps", "values"),
    [
        ("", [], {}),
        ('{"step": 1, "a": 1}\n{"step": 2, "a": 2}', [1, 2], {"a": [1, 2]}),  # whole, without a newline
        ('{"step": 1, "a": NaN}\n{"step": 2, "a": Infinity}\n{"step": 3, "a": -Infinity}\n', [1, 2, 3],
         {"a": [NAN, INF, -INF]}),
        ('{"step": 1, "a": 1}\n{"step": 2, "a": 1.5, "late": 7, "text": "x"}\n', [1, 2],
         {"a": [1, 1.5], "late": [NAN, 7]}),
        ('{"step": 1, "a": 1}\n{"step": 1, "b": 2}\n', [1], {"a": [1], "b": [2]}),
        ('{"step": 1, "a": 1, "b": 2}\n{"step": 1, "b": 3}\n{"b": 4, "step": 1}\n', [1], {"a": [1], "b": [4]}),
        ('{"step": 1, "a": 1, "b": 2}\n{"step": 2, "b": 3}\n{"b": 4, "step": 3, "a": 5}\n', [1, 2, 3],
         {"a": [1, NAN, 5], "b": [2, 3, 4]}),  # lines with the same keys in another order, or with fewer
        ('{"step": 1, "a": 1, "b": null, "c": [1], "d": true}\n{"step": 2, "a": 2, "b": 1, "c": {}, "d": false}\n',
         [1, 2], {"a": [1, 2], "b": [NAN, 1], "d": [1, 0]}),
        (f'{{"step": 1, "b": 1, "a": 1{"0" * 400}}}\n{{"step": 2, "b": 2, "a": 3}}\n', [1, 2],
         {"b": [1, 2], "a": [INF, 3]}),
    ],
)  # fmt: skip
def test_what_the_lines_of_a_log_hold(tmp_path: Path, lines: str, steps: list[int], values: dict[str, Any]) -> None:
    curves = read_curves(written(tmp_path, lines, end=""))
    assert curves.steps.tolist() == steps and curves.bad_count == 0
    assert {name: own.tolist() for name, own in curves.values.items()} == {
        name: pytest.approx(own, nan_ok=True) for name, own in values.items()
    }
    assert curves.not_finite == ({"a": 3} if "NaN" in lines else {"a": 1} if INF in values.get("a", []) else {})


def test_newest_attempt_wins_from_where_it_resumed(tmp_path: Path) -> None:
    lines = [json.dumps({"step": s, "attempt": 1, "a": s, "old": 1}) for s in range(1, 8)]
    lines += [json.dumps({"step": s, "attempt": 2, "a": 10 * s}) for s in range(4, 6)]
    curves = read_curves(written(tmp_path, *lines))
    assert curves.steps.tolist() == [1, 2, 3, 4, 5]
    assert curves.values["a"].tolist() == [1, 2, 3, 40, 50]
    assert np.isnan(curves.values["old"][3:]).all()
    assert curves.superseded == 4


def test_a_step_that_is_written_twice_is_told(make_sweep: MakeSweep) -> None:
    def lines(group: str, seed: int, cell: Mapping[str, Any]) -> Lines:
        made: Lines = [{"step": step, "attempt": 1, "time": float(step), "a/x": 1.0} for step in range(1, 5)]
        return made + [{"step": 4, "attempt": 1, "time": 9.0, **again} for again in ({"a/x": 2.0}, {"a/y": 1.0})[seed:]]

    twice, apart = read_sweep(make_sweep(("A",), (0, 1), steps=4, analysis={}, lines=lines)).runs
    assert twice.curves.values["a/x"].tolist() == [1, 1, 1, 2] and twice.curves.repeated == 1
    assert remark(twice) == "1 line repeats its step: the last counts"
    assert apart.curves.repeated == 0 and remark(apart) == ""  # other metrics of the same step, which is no repetition


def test_every_state_of_a_run_is_a_reason(make_sweep: MakeSweep, worded: Worded) -> None:
    folder = make_sweep(groups=("C0", "C1"), seeds=(0, 1, 2))
    multirun = folder.parent

    def state(run_id: str, name: str, **fields: object) -> None:
        write_state(run_folder(multirun, run_id), State(run_id, name, 1, **fields))  # type: ignore[arg-type]

    state("C0-0", "failed", error={"type": "RuntimeError", "message": "out of\nluck", "traceback": ""})
    state("C0-1", "diverged", message="health/nan at step 57")
    (run_folder(multirun, "C0-2") / "state.json").write_text("{")
    metrics_path(run_folder(multirun, "C1-0")).unlink()
    metrics_path(run_folder(multirun, "C1-1")).write_text("")
    (run_folder(multirun, "C1-2") / "state.json").unlink()
    worded(f"{run.id}: {run.problem}" for run in read_sweep(folder).runs)


def test_run_that_two_groups_share_is_read_once_and_stands_in_both(make_sweep: MakeSweep) -> None:
    folder = replan(make_sweep(groups=("C0", "C1"), seeds=(0,)), lambda plan: plan["runs"][1].update(id="C0-0"))
    assert [(run.id, run.group) for run in read_sweep(folder).runs] == [("C0-0", "C0"), ("C0-0", "C1")]


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"runs": None}, {"runs": [{"id": "x"}]}, {"runs": [{"id": "x", "group": "C9", "seed": 0}]},
     *({"runs": [{"id": "x", "group": "C0", "seed": seed}]} for seed in (2**64, None)), {"baseline": "C9"}],
)  # fmt: skip
def test_bad_plan_is_refused_in_one_line(make_sweep: MakeSweep, change: dict[str, object], worded: Worded) -> None:
    folder = replan(make_sweep(groups=("C0",), seeds=(0,)), lambda plan: plan.update(change))
    (line,) = refusal(BadPlan, lambda: read_sweep(folder)).splitlines()
    worded(line)


# ---------------------------------------------------------------- what is kept of a log


def long_log(path: Path, *more: str) -> Path:
    """A log of more than metric_log.SMALL bytes with everything that can be wrong with one."""
    rows = [json.dumps({"step": s, "a": s / 3, "a.b": -s, "text": "x" * 1200}) for s in range(1, 1001)]
    odd = [
        '{"step": 5, "attempt": 2, "a": NaN}',
        '{"step": 5, "attempt": 2, "a": NaN}',
        '{"step": 6, "attempt": 2, "a": Infinity, "late": 1}',
        "{broken",
        *more,
    ]
    path.write_text("\n".join([*rows, *odd]))
    assert path.stat().st_size > metric_log.SMALL
    return path


def plain(curves: Curves) -> tuple[object, ...]:
    values = {name: values.tobytes() for name, values in curves.values.items()}
    counts = curves.bad_count, curves.superseded, curves.repeated
    return curves.steps.tobytes(), values, dict(curves.not_finite), curves.bad, *counts


def test_kept_curves_are_those_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, kept = long_log(tmp_path / "metrics.jsonl"), tmp_path / "kept" / "run"
    first = metric_log.curves(log, "shown", kept)
    assert plain(first) == plain(read_curves(log, "shown")) and first.bad[0].torn and first.superseded == 996
    assert first.repeated == 1
    monkeypatch.setattr(metric_log, "parse", None)  # so that a second parse would fail
    again = metric_log.curves(log, "elsewhere", kept)
    assert again.bad[0].file == "elsewhere" and "a.b" in again.values and "missing" not in again.values
    assert plain(metric_log.curves(log, "shown", kept)) == plain(first)
    os.utime(log, ns=(1, 1))  # touched: known by its content
    assert plain(metric_log.curves(log, "shown", kept)) == plain(first)
    with pytest.raises(KeyError):
        again.values["missing"]


def test_kept_curves_hold_no_file_open(tmp_path: Path) -> None:
    """Of a thousand runs they would be all that a process may open."""
    log, kept = long_log(tmp_path / "metrics.jsonl"), tmp_path / "run"
    metric_log.curves(log, "shown", kept)
    before = len(os.listdir("/dev/fd"))
    held = [metric_log.curves(log, "shown", kept) for _ in range(3)]
    assert len(os.listdir("/dev/fd")) == before and len(held) == 3


def test_a_log_that_changed_is_read_again(tmp_path: Path) -> None:
    log, kept = long_log(tmp_path / "metrics.jsonl"), tmp_path / "run"
    metric_log.curves(log, "shown", kept)
    long_log(log, '{"step": 7, "attempt": 2, "a": 4.5}')
    grown = metric_log.curves(log, "shown", kept)
    assert grown.values["a"][-1] == 4.5 and plain(grown) == plain(read_curves(log, "shown"))
    text = log.read_text()
    log.write_text(text.replace('"a": 4.5', '"a": 9.5'))  # as long as before
    assert metric_log.curves(log, "shown", kept).values["a"][-1] == 9.5


@pytest.mark.parametrize("content", [b"", b"no columns", b"{}\n", None])
def test_what_is_kept_may_be_damaged_or_in_the_way(tmp_path: Path, content: bytes | None) -> None:
    log, kept = long_log(tmp_path / "metrics.jsonl"), tmp_path / "run"
    file = tmp_path / "run.columns"
    file.mkdir() if content is None else file.write_bytes(content)
    assert plain(metric_log.curves(log, "shown", kept)) == plain(read_curves(log, "shown"))
    assert not list(tmp_path.glob("*.part"))


def test_a_log_without_a_good_line_is_kept_too(tmp_path: Path) -> None:
    log, kept = written(tmp_path, *["{broken" * 200] * 1000), tmp_path / "run"
    assert log.stat().st_size > metric_log.SMALL
    first = metric_log.curves(log, "shown", kept)
    assert not first.steps.size and first.bad_count == 1000 and list(tmp_path.glob("run.*"))
    assert plain(metric_log.curves(log, "shown", kept)) == plain(first)


def test_a_short_log_is_not_kept(tmp_path: Path) -> None:
    path = written(tmp_path, '{"step": 1, "a": 1}')
    assert metric_log.curves(path, "shown", tmp_path / "kept" / "run").values["a"].tolist() == [1]
    assert not (tmp_path / "kept").exists()
    with pytest.raises(FileNotFoundError):
        metric_log.curves(tmp_path / "none", "shown", tmp_path / "run")


def test_columns_that_are_not_held_in_memory_are_the_same(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many runs are in a file; derived metrics are computed from them."""
    folder = make_sweep(("A", "B"), (0, 1), steps=6, analysis={})
    held = read_sweep(folder)
    monkeypatch.setattr(sweep_module, "_HELD", 100)
    moved = read_sweep(folder)
    assert not any(isinstance(run.curves.values, dict) for run in moved.runs[1:])
    names = list(held.runs[0].curves.values)
    derived = f"{names[0]} - {names[1]}"
    for run, other in zip(added(held, [derived]).runs, added(moved, [derived]).runs, strict=True):
        assert {*run.curves.values} == {*other.curves.values} >= {derived} and "none" not in other.curves.values
        for name, column in run.curves.values.items():
            np.testing.assert_array_equal(column, other.curves.values[name])


def test_a_label_cannot_turn_round_the_words_beside_it(make_sweep: MakeSweep) -> None:
    labels = {"C0": {"label": "\u202e base\x1b[31m\nline "}, "C1": {"label": "\u200f"}}
    sweep = read_sweep(replan(make_sweep(("C0", "C1"), steps=3), lambda plan: plan.update(groups=labels)))
    assert [sweep.label(group) for group in ("C0", "C1")] == ["base[31m line", "C1"]


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("python launch.py -m experiment=quickstart", "multirun/quickstart"),
        ("python launch.py -m experiment=quickstart multirun=/data/mine seed=0", "/data/mine/quickstart"),
        ("python launch.py -m 'multirun='\"'\"'/data/a b'\"'\"''", "'/data/a b/quickstart'"),
        ("python -m analysis import wandb/ --into elsewhere/quickstart --group x", "elsewhere/quickstart"),
        ("python -m analysis import wandb/ --into=elsewhere/quickstart", "elsewhere/quickstart"),
        (None, "multirun/quickstart"),
        ("an ' unfinished multirun=word", "multirun/quickstart"),
    ],
)  # fmt: skip
def test_the_place_of_an_experiment_is_where_its_own_command_puts_it(command: Any, place: str) -> None:
    assert Sweep(Path("/a/copy/quickstart"), {"command": command}, ()).place == place
