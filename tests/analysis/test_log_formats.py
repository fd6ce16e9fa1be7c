"""Every format through one table: a whole, a resumed, a torn, an empty and a large log, against plain Python."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.data.metric_log import parse
from analysis.data.sweep import read_sweep
from analysis.sources import source
from analysis.sources.import_runs import ImportRequest, import_runs
from analysis.sources.log import BadImport
from analysis.sources.naming import Naming
from analysis.sources.source import LoggedRun
from launcher import files
from launcher.run.folder import metrics_path
from launcher.run.lifecycle import RunState, State, write_state
from tests.analysis.conftest import MakeSweep, refusal
from tests.analysis.source_conformance import check

Rows = Sequence[tuple[int, float]]


def standing(rows: Rows) -> dict[int, float]:
    """What counts of rows in the order in which they were logged: a step that comes again drops those after it."""
    kept: dict[int, float] = {}
    for step, value in rows:
        if kept and step <= max(kept):
            kept = {before: old for before, old in kept.items() if before < step}
        kept[step] = value
    return kept


# ---------------------------------------------------------------- writers: the rows of a run, as the tool leaves them


def _verl(folder: Path, rows: Rows) -> Path:
    lines(folder, *({"step": step, "data": {"reward": value}} for step, value in rows), name="run.jsonl")
    return folder / "run.jsonl"


def _history(folder: Path, rows: Rows) -> Path:
    lines(folder, *({"_step": step, "_timestamp": 1.7e9, "reward": value, "eval": None} for step, value in rows))
    return folder / "ppo-s0.jsonl"


def _csv(folder: Path, rows: Rows) -> Path:
    (folder / "run.csv").write_text("".join(f"{step},{value}\n" for step, value in [("step", "reward"), *rows]))
    return folder / "run.csv"


def _parquet(folder: Path, rows: Rows) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("_step", pa.int64()), ("reward", pa.float64())])
    columns = [[row[place] for row in rows] for place in (0, 1)]
    parquet.write_table(pa.table(columns, schema=schema), folder / "run.parquet")
    return folder / "run.parquet"


def _console(folder: Path, rows: Rows) -> Path:
    (folder / "run.log").write_text("".join(f"step:{step} - reward:{value!r}\n" for step, value in rows))
    return folder / "run.log"


def _trainer(folder: Path, rows: Rows) -> Path:
    history = [{"step": step, "reward": value, "epoch": 0.1} for step, value in rows]
    last = max((step for step, _ in rows), default=0)
    state = {"global_step": last, "max_steps": last, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder / "trainer_state.json"


def trackio(file: Path, runs: dict[str, Rows], config: Any = None, with_id: bool = True) -> Path:
    """A project as Trackio 0.36 writes it; without ids, as its early versions did."""
    some_id = "run_id TEXT NOT NULL, " if with_id else ""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(
            f"CREATE TABLE metrics (id INTEGER PRIMARY KEY, {some_id}timestamp TEXT, run_name TEXT, step INTEGER, "
            "metrics TEXT)"
        )
        db.execute(
            f"CREATE TABLE configs (id INTEGER PRIMARY KEY, {some_id}run_name TEXT, config TEXT, created_at TEXT)"
        )
        for place, (name, rows) in enumerate(runs.items()):
            key, mark = ([f"id{place}"], "?, ") if with_id else ([], "")
            for step, value in rows:
                text = json.dumps({"reward": value, "bad": "NaN", "deep": {"er": step}}).encode()
                db.execute(f"INSERT INTO metrics VALUES (NULL, {mark}'t', ?, ?, ?)", [*key, name, step, text])
            about = json.dumps({"algo": "ppo", "seed": place, "_Group": "g", **(config or {})})
            db.execute(f"INSERT INTO configs VALUES (NULL, {mark}?, ?, 't')", [*key, name, about])
    return file


def _mlruns(folder: Path, rows: Rows) -> Path:
    run = folder / "mlruns" / "1" / "abc"
    for part in ("metrics/train", "params/opt", "tags"):
        (run / part).mkdir(parents=True)
    (run.parent / "meta.yaml").write_text("experiment_id: '1'\nname: exp\n")
    (run / "meta.yaml").write_text("run_id: abc\nstatus: 3\nlifecycle_stage: active\nstart_time: 1700000000000\n")
    (run / "params" / "opt" / "lr").write_text("0.1")
    (run / "tags" / "mlflow.runName").write_text("ppo-s0")
    file = run / "metrics" / "reward"
    file.write_text("".join(f"{1700000000000 + n} {value!r} {step}\n" for n, (step, value) in enumerate(rows)))
    # of an evaluation that is behind, and no later attempt
    (run / "metrics" / "train" / "eval").write_text("1800000000000 5.0 1\n" if rows else "")
    return file


def _mlflow_db(folder: Path, rows: Rows) -> Path:
    with closing(sqlite3.connect(folder / "mlflow.db")) as db, db:
        db.executescript(
            "CREATE TABLE experiments (experiment_id INTEGER, name TEXT);"
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, lifecycle_stage TEXT, experiment_id INTEGER);"
            "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOLEAN);"
            "INSERT INTO experiments VALUES (1, 'exp'); INSERT INTO params VALUES ('seed', '3', 'abc');"
            "INSERT INTO runs VALUES ('abc', 'x', 'FINISHED', 'active', 1), ('gone', 'y', 'FINISHED', 'deleted', 1);"
        )
        db.executemany("INSERT INTO metrics VALUES ('reward', ?, ?, 'abc', ?, 0)",
                       [(value, 1700000000000 + n, step) for n, (step, value) in enumerate(rows)])  # fmt: skip
    return folder / "mlflow.db"


def _own(folder: Path, rows: Rows) -> Path:
    run = folder / "runs" / "r1"
    run.mkdir(parents=True)
    (folder / "exp").mkdir()
    plan = {"runs": [{"id": "r1", "group": "ppo", "seed": 4, "factors": {"lr": 0.1}}]}
    (folder / "exp" / "plan.json").write_text(json.dumps(plan))
    (run / "config.yaml").write_text(files.dump_yaml({"format": 1, "id": "r1", "seed": 4, "config": {}}))
    write_state(run, State("r1", RunState.DONE, 1))
    attempt, before, written = 1, 0, list[dict[str, Any]]()
    for step, value in rows:
        attempt, before = attempt + (step <= before), step
        written.append({"step": step, "attempt": attempt, "time": 1.7e9 + len(written), "reward": value})
    metrics_path(run).write_text("".join(json.dumps(line) + "\n" for line in written))
    return metrics_path(run)


def _events(folder: Path, rows: Rows) -> Path:
    from tests.analysis.test_importing import events

    parts: list[dict[int, float]] = [{}]
    for step, value in rows:
        if step in parts[-1]:
            parts.append({})
        parts[-1][step] = value
    for number, part in enumerate(parts):
        events(folder / f"part{number}", part)
        (folder / "run").mkdir(exist_ok=True)
        for file in (folder / f"part{number}").iterdir():
            file.rename(folder / "run" / f"events.out.tfevents.{number}")
        (folder / f"part{number}").rmdir()
    return folder / "run" / f"events.out.tfevents.{len(parts) - 1}"


#: By case: the source, what writes a log, and whether a torn file is read up to the tear, or refused.
FORMATS: dict[str, tuple[str, Callable[[Path, Rows], Path], bool]] = {
    "verl": ("JSONL", _verl, True),
    "W&B's history as JSONL": ("JSONL", _history, True),
    "CSV": ("CSV", _csv, True),
    "Parquet": ("Parquet", _parquet, False),
    "verl's console": ("verl's console", _console, True),
    "Trainer": ("Trainer", _trainer, False),
    "Trackio": ("Trackio", lambda folder, rows: trackio(folder / "p.db", {"ppo-s0": rows}), False),
    "mlruns": ("MLflow", _mlruns, True),
    "MLflow's database": ("MLflow", _mlflow_db, False),
    "rlsweep": ("rlsweep", _own, True),
    "TensorBoard": ("TensorBoard", _events, True),
}
WHOLE = [(step, step / 8) for step in range(1, 9)]
RESUMED = [*WHOLE[:6], *((step, 10 + step / 8) for step in range(4, 9))]
LARGE = [(step, math.sin(step)) for step in range(1, 1_001)]


def runs_of(kind: str, logs: Path) -> list[LoggedRun]:
    """The runs below a folder, by the names of their files."""
    format_ = source.sources()[kind]
    return list(format_.read(dict(sorted(format_.found(logs, None).items())), None, ()))


def values_of(run: LoggedRun, folder: Path, metric: str = "reward") -> dict[int, float]:
    """What is read of the log that the run has written to a folder."""
    run.log.write(folder)
    curves = parse(BytesIO(metrics_path(folder).read_bytes()), "")
    values = zip(curves.steps.tolist(), curves.values.get(metric, []), strict=False)
    return {int(step): float(value) for step, value in values if value == value}


def read(kind: str, logs: Path) -> tuple[LoggedRun, dict[int, float]]:
    (run,) = runs_of(kind, logs)
    return run, values_of(run, logs / "written")


def near(kind: str, expected: dict[int, float]) -> Any:
    return pytest.approx(expected, rel=1e-6, abs=1e-6) if kind == "TensorBoard" else expected  # single precision


@pytest.mark.parametrize("rows", [WHOLE, RESUMED, LARGE], ids=["whole", "resumed", "large"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_rows_that_count_are_those_of_plain_python_and_the_others_are_counted(
    tmp_path: Path, name: str, rows: Rows
) -> None:
    kind, write, _ = FORMATS[name]
    write(tmp_path, rows)
    run, found = read(kind, tmp_path)
    assert found == near(kind, standing(rows)) and run.problem is None
    lost = len(rows) - len(found)
    assert run.log.read - run.log.used + (0 if kind != "rlsweep" else lost) == lost
    assert sum(run.log.unused.values()) == lost


@pytest.mark.parametrize("name", FORMATS)
def test_a_torn_log_is_read_to_the_tear_or_refused_by_name(tmp_path: Path, name: str) -> None:
    kind, write, is_read = FORMATS[name]
    file = write(tmp_path, LARGE)
    data = file.read_bytes()
    # a table's last line that lacks an end alone may be whole, as editors leave it
    cut = data.rindex(b",") if kind == "CSV" else len(data) - 3 if is_read else len(data) // 2
    file.write_bytes(data[:cut])
    if kind == "Trainer":
        run, found = read(kind, tmp_path)
        assert (found, run.problem) == ({}, "it ended before it had logged a step")
        assert run.log.unused == {"trainer_state.json is incomplete": 1}
    elif is_read:
        run, found = read(kind, tmp_path)
        assert found == near(kind, standing(LARGE[:-1]))
        assert sum(run.log.unused.values()) == (kind != "TensorBoard" and kind != "verl's console")
    else:
        into = tmp_path / "m" / "x"
        said = refusal(BadImport, lambda: import_runs(ImportRequest((tmp_path,), into, Naming(), metrics=("reward",))))
        assert str(file) in said and "Fix: " in said


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_the_promises_of_a_source(tmp_path: Path, name: str) -> None:
    kind, write, _ = FORMATS[name]
    for folder in ("logs", "aside"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "logs", WHOLE)
    (run,) = check(source.sources()[kind], tmp_path / "logs", tmp_path / "aside")
    assert run.log.last_step == len(WHOLE)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "verl's console"])
def test_a_log_without_a_row_is_a_run_that_ended_before_its_first_step(tmp_path: Path, name: str) -> None:
    kind, write, _ = FORMATS[name]
    write(tmp_path, [])
    run, found = read(kind, tmp_path)
    assert found == {} and run.problem == "it ended before it had logged a step"


# ---------------------------------------------------------------- what only some formats have


def lines(folder: Path, *rows: object, name: str = "ppo-s0.jsonl", end: str = "\n") -> Path:
    """A file of these lines, as JSON or as they are."""
    texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(text + end.encode() for text in texts))
    return folder


def test_every_odd_cell_and_line_of_json_is_read_or_named(tmp_path: Path) -> None:
    odd = [
        b'\xef\xbb\xbf{"step": 1, "reward": "0.5", "note": "x", "deep": {"er": 1}}',
        b'{"step": 2, "reward": NaN}',
        b'{"step": 3, "reward": Infinity}',
        b'{"step": 4.0, "reward": true}',
        b'{"step": "5", "reward": ' + b"9" * 400 + b"}",
        b"\0" * 40,
        b'\0\0{"step": 6, "reward": null}',
        b"",
        b'{"reward": 7}',
    ]
    run, found = read("JSONL", lines(tmp_path, *odd, end="\r\n"))
    assert found == {1: 0.5, 3: math.inf, 4: 1, 5: math.inf}
    assert run.log.cells == {"reward": 5, "deep.er": 1} and "note = 'x': not a number" in run.log.left_out["note"]
    assert {why: count for why, count in run.log.unused.items() if count} == {
        "NUL bytes alone": 1,
        "without a step": 1,
    }


def test_lines_that_cannot_be_read_are_refused_and_files_of_samples_are_no_logs(tmp_path: Path) -> None:
    wrong = [b"not json", [1], {"step": 0.5, "a": 1}, {"step": -1, "a": 1}, {"step": True, "a": 1}]
    said = refusal(BadImport, lambda: read("JSONL", lines(tmp_path / "a", {"step": 1, "a": 1}, *wrong)))
    assert [f"line {number}" in said for number in (2, 3, 4, 5, 6)] == [True] * 5
    rollouts = {"input": "q", "output": "a", "gts": "a", "score": 1.0, "step": 1}  # of verl
    sample = {"step": 1, "sample_idx": 0, "prompt_tokens": [1], "response_tokens": [2], "reward": 1.0, "dataset": "d",
              "finish_reason": "stop", "logprobs": [0.1]}  # fmt: skip
    for name, line in {"1": rollouts, "x_rollouts_0": sample, "checkpoints": {"name": "1", "batch": 20}}.items():
        lines(tmp_path / "b", line, name=f"{name}.jsonl")
    assert source.sources()["JSONL"].found(tmp_path / "b", None) == {}
    lines(tmp_path / "b", {"iter": 1, "reward": 2.0})
    assert len(source.sources()["JSONL"].found(tmp_path / "b", "iter")) == 1
    named = ImportRequest((tmp_path / "b" / "ppo-s0.jsonl",), tmp_path / "m" / "x", metrics=("reward",))
    assert "no key is known to count steps; the keys are iter, reward. Fix: give --step KEY" in refusal(
        BadImport, lambda: import_runs(named)
    )


def test_a_cell_may_hold_a_long_prompt_and_a_quote_that_swallows_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-s0.csv"
    path.write_text(f'step,reward,prompt\n1,0.5,"{"x" * 200_000}"\n2,0.75,y\n')
    _, found = read("CSV", tmp_path)
    assert found == {1: 0.5, 2: 0.75}
    path.write_text('step,reward,prompt\n1,0.5,"x\n' + "2,0.75,y\n" * 1000)
    limit = csv.field_size_limit(4000)
    try:
        assert "cannot be read: field larger than field limit" in refusal(BadImport, lambda: read("CSV", tmp_path))
    finally:
        csv.field_size_limit(limit)
    said = "line 2: a quote opens here and none closes it, so it swallows 1000 or more rows. Fix: close the quote"
    assert said in refusal(BadImport, lambda: read("CSV", tmp_path))
    (cut := tmp_path / "cut").mkdir()
    (cut / "a-s0.csv").write_text('step,reward,prompt\n1,0.5,"x\ny, z"\n2,0.75,"cut, in a text\nof the last, two,\n')
    assert read("CSV", cut)[1] == {1: 0.5, 2: 0.75}


def test_two_processes_that_write_one_file_are_no_attempts(tmp_path: Path) -> None:
    trainer = [{"step": step, "loss": step / 2} for step in range(1, 9)]
    others = [{"step": step, "reward": step / 4} for step in range(1, 6)]
    mixed = [*trainer[:5], *others[:3], *trainer[5:], *others[3:]]
    run, found = read("JSONL", lines(tmp_path, *mixed))
    assert found == {step: step / 4 for step in range(1, 6)}
    assert run.log.read == run.log.used == 13 and not sum(run.log.unused.values())
    killed = [line for u in range(10) for line in ({"step": u, "loss": u}, {"step": 1000 * u, "reward": u / 4})]
    resumed = [
        line for u in range(6, 12) for line in ({"step": u, "loss": 0}, {"step": 1000 * u, "reward": 9, "x": "?"})
    ]
    run, found = read("JSONL", lines(tmp_path / "resumed", *killed, *resumed))
    assert found == {1000 * u: u / 4 if u < 6 else 9 for u in range(12)} and list(run.log.left_out) == ["x"]


def test_trackio_and_mlflow_say_what_they_know_of_a_run(tmp_path: Path) -> None:
    trackio(tmp_path / "p.db", {"a": WHOLE, "b": []})
    trackio(tmp_path / "old.db", {"a": RESUMED}, with_id=False)
    runs = {run.name: run for run in runs_of("Trackio", tmp_path)}
    assert sorted(runs) == ["old/a", "p/a", "p/b"] and runs["p/b"].problem and len(runs["old/a"].log) == 11
    assert runs["p/a"].about["seed"] == 0 and runs["p/a"].about["trackio.group"] == "g"
    _mlruns(tmp_path, RESUMED)
    run, _ = read("MLflow", tmp_path)
    labels = {"opt/lr": 0.1, "mlflow.runName": "ppo-s0", "mlflow.experiment": "exp"}
    assert (run.name, run.about) == (f"{tmp_path.name}/mlruns/1/abc", labels)
    (tmp_path / "mlruns" / "1" / "abc" / "meta.yaml").write_text("run_id: abc\nstatus: 4\n")
    (other,) = runs_of("MLflow", tmp_path)
    assert other.problem == "its status is FAILED"


def _logged(folder: Path, *scalars: tuple[str, int, float], parent: str = "") -> Path:
    """A run of MLflow with these metrics, steps and values, in this order."""
    for name in ("metrics", "tags"):
        (folder / name).mkdir(parents=True)
    (folder / "meta.yaml").write_text(f"run_id: {folder.name}\nstatus: 3\n")
    (folder / "tags" / "mlflow.parentRunId").write_text(parent)
    for number, (metric, step, value) in enumerate(scalars):
        with (folder / "metrics" / metric).open("a") as file:
            file.write(f"{1700000000000 + number} {value} {step}\n")
    return folder


def test_metrics_that_count_different_steps_are_resumed_each_by_its_own(tmp_path: Path) -> None:
    again = [("val", epoch, epoch / 8) if batch is None else ("loss", batch, 1.0 + epoch)
             for epoch in range(11) for batch in (None, *range(1, 6))]  # fmt: skip
    resumed = [("val", epoch, 9.0 * (first == 0 and epoch >= 8)) if batch is None else ("loss", batch, float(first))
               for first, last, every in ((0, 10, 25), (8, 12, 50)) for epoch in range(first, last)
               for batch in (None, *range(100 * epoch, 100 * epoch + 100, every))]  # fmt: skip
    tied = [
        (metric, step, value)
        for epoch in range(11)
        for metric, step, value in (("loss", 1, epoch), ("val", epoch, epoch), *(("loss", b, 0.0) for b in (2, 3)))
    ]
    cases = {"again": again, "resumed": resumed, "tied": tied, "negative": [("val", -1, 5.0), *again[:30]]}
    for name, scalars in cases.items():
        logs = _logged(tmp_path / name / "run", *scalars).parent
        run, _ = read("MLflow", logs)
        curves = parse(BytesIO(metrics_path(logs / "written").read_bytes()), "")
        for metric in ("val", "loss"):
            values = zip(curves.steps.tolist(), curves.values.get(metric, []), strict=False)
            began_anew = metric in run.log.left_out
            expected = standing([(step, value) for of, step, value in scalars if of == metric and step >= 0])
            assert {step: value for step, value in values if value == value} == ({} if began_anew else expected)
            assert began_anew == (metric == "loss" and name != "resumed")


def test_a_counter_that_begins_anew_is_refused_only_if_it_is_asked_for(tmp_path: Path) -> None:
    for name in "ab":
        scalars = [(metric, step, 1.0 + epoch) for epoch in range(9)
                   for metric, step in (("val", epoch), *(("step_of_epoch", at) for at in range(1, 5)))]  # fmt: skip
        _logged(tmp_path / "mlruns" / "0" / name, *scalars)
    asked = ImportRequest(
        (tmp_path / "mlruns",), tmp_path / "m" / "x", metrics=("val",), naming=Naming(match="(?P<group>.)$")
    )
    assert import_runs(asked).groups == {"a": 1, "b": 1}
    again = replace(asked, metrics=("step_of_epoch",))
    assert "would replace all earlier rows" in refusal(BadImport, lambda: import_runs(again))


def test_what_a_tool_keeps_in_the_folder_of_a_run_is_of_that_run(tmp_path: Path) -> None:
    logs = tmp_path / "mlruns" / "0"
    for name in "ab":
        _logged(logs / name, ("reward", 1, 0.5), ("reward", 2, 0.75), parent="sweep")
        lines(logs / name / "artifacts" / "log", {"step": 1, "reward": 9.0})
    _logged(logs / "sweep")  # in which the others are nested
    asked = ImportRequest((logs,), tmp_path / "m" / "x", metrics=("reward",), naming=Naming(match="(?P<group>.)$"))
    assert import_runs(asked).groups == {"a": 1, "b": 1}


def test_numbers_of_parquet_have_no_notation(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = {"step": [1, 2], "reward": [1.619, 2.125], "sizes": ["64,64", "32,32"]}
    parquet.write_table(pa.table(table), tmp_path / "run.parquet")
    import_runs(ImportRequest((tmp_path / "run.parquet",), tmp_path / "m" / "x", metrics=("reward",),
                              naming=Naming(match="(?P<group>run)")))  # fmt: skip
    (run,) = read_sweep(tmp_path / "m" / "x").runs
    assert run.curves.values["reward"].tolist() == [1.619, 2.125]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _parquet(tmp_path, WHOLE)
    monkeypatch.setattr(
        "analysis.sources.formats.csv_files.missing", lambda module: (f"{module} is not installed", "FIX")
    )
    asked = ImportRequest((file,), tmp_path / "m" / "x", metrics=("reward",))
    assert "pyarrow is not installed. Fix: FIX" in refusal(BadImport, lambda: import_runs(asked))


def test_an_experiment_is_its_runs_with_their_group_seed_and_factors(make_sweep: MakeSweep, tmp_path: Path) -> None:
    folder = make_sweep(("C0", "C1"), seeds=(0, 1), cells={name: [{"lr": 0.1}] for name in ("C0", "C1")})
    (folder / "report").mkdir()
    (folder / "report" / "curve.csv").write_text("step,reward\n1,2\n")
    (folder.parent / "runs" / "C0-1-0" / "state.json").unlink()
    (folder.parent / "runs" / "C1-0-0" / "config.yaml").unlink(missing_ok=True)
    runs = {run.name: run for run in runs_of("rlsweep", folder)}
    assert sorted(runs) == [f"quickstart/{group}/{group}-{seed}-0" for group in ("C0", "C1") for seed in (0, 1)]
    about = runs["quickstart/C1/C1-0-0"].about
    assert {key: about[key] for key in about if key.startswith("rlsweep.")} == {
        "rlsweep.group": "C1", "rlsweep.seed": 0, "rlsweep.lr": 0.1
    }  # fmt: skip
    assert "state.json" in str(runs["quickstart/C0/C0-1-0"].problem)
    metric = json.loads((folder / "plan.json").read_text())["analysis"]["primary"]["metric"]
    naming = Naming("rlsweep.group", "rlsweep.seed", ("rlsweep.lr",))
    done = import_runs(ImportRequest((folder,), tmp_path / "again" / "x", naming, metrics=(metric,)))
    assert done.groups == {"C0": 2, "C1": 2}
    theirs = {
        (run.group, run.seed): run.curves.values[metric].tolist() for run in read_sweep(tmp_path / "again" / "x").runs
    }
    assert theirs == {(run.group, run.seed): run.curves.values[metric].tolist() for run in read_sweep(folder).runs}


def test_runs_of_equal_ids_in_two_multiruns_are_two_runs(make_sweep: MakeSweep, tmp_path: Path) -> None:
    """An id belongs to a configuration: another machine gives it to another run."""
    first = make_sweep(("C0",), seeds=(0, 1), steps=5)
    metric = json.loads((first / "plan.json").read_text())["analysis"]["primary"]["metric"]
    second = shutil.copytree(first.parent, tmp_path / "another") / first.name
    for path in (second.parent / "runs").glob("*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, metric: row[metric] + 5}) + "\n" for row in rows))
    given = {first: "a", second: "b"}
    asked = ImportRequest((first, second), tmp_path / "m" / "x", groups=given, baseline="a", metrics=(metric,))
    assert import_runs(asked).groups == {"a": 2, "b": 2}
    of = {(run.group, run.seed): run.curves.values[metric] for run in read_sweep(tmp_path / "m" / "x").runs}
    for seed in (0, 1):
        np.testing.assert_allclose(of["b", seed], of["a", seed] + 5)
    mixed = ImportRequest((first, second), tmp_path / "n" / "x", Naming("rlsweep.group"), metrics=(metric,))
    refused = refusal(BadImport, lambda: import_runs(mixed))
    assert "(another/quickstart/C0/C0-0, multirun/quickstart/C0/C0-0)" in refused
    assert not (tmp_path / "n" / "x").exists()


def test_mlflows_database_has_words_for_what_is_not_a_finite_number(tmp_path: Path) -> None:
    _mlflow_db(tmp_path, WHOLE)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as db, db:
        db.execute("UPDATE metrics SET is_nan = 1, value = 0 WHERE step = 2")
        db.execute("UPDATE metrics SET value = -1.7976931348623157e308 WHERE step = 3")
    run, found = read("MLflow", tmp_path)
    assert found == {**{step: value for step, value in WHOLE if step != 2}, 3: -math.inf}
    assert run.log.used == len(WHOLE) and run.about == {"seed": 3, "mlflow.experiment": "exp"}


def test_a_chart_that_wandb_exports_has_a_run_in_each_group_of_columns(tmp_path: Path) -> None:
    (tmp_path / "chart.csv").write_text(
        '"Step","ppo-s0 - val/acc","ppo-s0 - val/acc__MIN","a - b-s1 - val/acc","a - b-s1 - val/acc__MIN"\n'
        "1,50%,50%,25%,25%\n2,75%,75%,,\n3,,,40%,40%\n"
    )
    runs = runs_of("CSV", tmp_path)
    assert [run.name.partition("/")[2] for run in runs] == ["chart/ppo-s0", "chart/a - b-s1"]
    for place, (run, values) in enumerate(zip(runs, ({1: 0.5, 2: 0.75}, {1: 0.25, 3: 0.4}), strict=True)):
        assert values_of(run, tmp_path / str(place), "val/acc") == values and run.log.used == 2


def test_columns_that_are_called_as_seeds_are_runs(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("step,ppo-seed0,ppo-seed1,dpo s0\n1,50%,20%,\n2,75%,,3%\n")
    (tmp_path / "one.csv").write_text("step,loss,pass_1,reward_s\n1,2,3,4\n")
    one, *runs = runs_of("CSV", tmp_path)
    assert one.name.endswith("/one") and {*one.log.metrics} == {"loss", "pass_1", "reward_s"}
    assert [run.name.partition("/")[2] for run in runs] == ["wide/ppo-seed0", "wide/ppo-seed1", "wide/dpo s0"]
    assert [list(run.log.metrics["wide"]) for run in runs] == [[(0.5, 0), (0.75, 1)], [(0.2, 0)], [(0.03, 0)]]


HYDRA = ("JSONL", "CSV", "Parquet", "verl's console", "Trainer", "TensorBoard")


@pytest.mark.parametrize("name", [name for name, (kind, *_) in FORMATS.items() if kind in HYDRA])
def test_a_job_of_hydra_has_its_configuration_beside_any_log(tmp_path: Path, name: str) -> None:
    kind, write, _ = FORMATS[name]
    (job := tmp_path / "multirun" / "0" / ".hydra").mkdir(parents=True)
    (job / "config.yaml").write_text("algo: ppo\nseed: 3\n")
    (job / "overrides.yaml").write_text("- seed=3\n")
    write(job.parent, WHOLE)
    run, found = read(kind, tmp_path / "multirun")
    assert run.about == {"algo": "ppo", "seed": 3} and len(found) == len(WHOLE)


def test_a_run_of_this_project_that_began_anew_is_its_last_attempt(tmp_path: Path) -> None:
    rows = [*WHOLE[:4], *((step, 10.0 + step) for step in range(1, 9))]
    _own(tmp_path, rows)
    run, found = read("rlsweep", tmp_path)
    assert found == standing(rows) == {step: 10.0 + step for step in range(1, 9)}
    assert run.log.unused["superseded by a later attempt"] == 4
