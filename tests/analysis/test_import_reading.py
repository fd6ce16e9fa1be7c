"""What an import reads of a log: every cell, row and attempt is used, or refused by name, or counted."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.data.sweep import Run, read_sweep
from analysis.sources import BadImport, ImportRequest, Naming, import_runs
from launcher.run.folder import read_provenance, run_folder
from tests.analysis.conftest import refusal
from tests.analysis.test_importing import events, job, offline, trainer_state
from tests.wording import Worded

BY_NAME = Naming(match=r"(?P<group>[a-z]+)-s(?P<seed>\d+)")
BY_COLUMN = Naming("algo", "seed")


def imported(source: Path, naming: Naming = BY_NAME, **more: Any) -> list[Run]:
    into = source.parent / "multirun" / "theirs"
    import_runs(ImportRequest((source,), into, naming, **{"metrics": ("reward",), **more}))
    return list(read_sweep(into).runs)


def refused(source: Path, naming: Naming = BY_NAME, **more: Any) -> str:
    return refusal(BadImport, lambda: imported(source, naming, **more))


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "logs"


def points(run: Run, metric: str = "reward") -> dict[float, float]:
    values = zip(run.curves.steps.tolist(), run.curves.values[metric].tolist(), strict=True)
    return {step: value for step, value in values if value == value}


def verl(*rows: tuple[int, dict[str, Any]]) -> str:
    return "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in rows)


# ---------------------------------------------------------------- runs that ended before their first step

VERL = verl((1, {"reward": 0.5}), (2, {"reward": 0.75}))
TABLE = "step,reward\n1,0.5\n2,0.75\n"
PRINTED = "(TaskRunner pid=1) {'actor_rollout_ref': {'a': 1},\n(TaskRunner pid=1)  'trainer': {}}\n"


@pytest.mark.parametrize(
    ("name", "whole", "died"),
    [
        ("ppo-s{}.jsonl", VERL, b""),
        ("ppo-s{}.jsonl", VERL, b'{"step":1,"da'),
        ("ppo-s{}.jsonl", VERL, b"\0" * 200),
        ("ppo-s{}/metrics.jsonl", VERL, b""),
        ("ppo-s{}.csv", TABLE, b"step,reward\n"),
        ("ppo-s{}.csv", TABLE, b"step,rew"),
        ("ppo-s{}/progress.csv", TABLE, b""),
        ("ppo-s{}/0.monitor.csv", '#{"t": 1}\nr,l,t\n0.5,1,1\n0.75,1,2\n', b'#{"t": 1}\nr,l,t\n'),
        ("ppo-s{}.log", PRINTED + "step:1 - reward:0.5\nstep:2 - reward:0.75\n", PRINTED.encode()),
    ],
)
def test_a_run_whose_file_holds_no_whole_line_is_present_and_missing(
    tmp_path: Path, name: str, whole: str, died: bytes
) -> None:
    logs = written(tmp_path, {name.format(0): whole, name.format(1): died})
    runs = imported(logs, metrics=("r",) if "monitor" in name else ("reward",))
    assert [(run.group, run.seed, run.done) for run in runs] == [("ppo", 0, True), ("ppo", 1, False)]
    assert runs[1].problem == "failed: it ended before it had logged a step"


def test_runs_without_scalars_or_history_are_present_and_what_belongs_to_a_run_is_none(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    events(tmp_path / "logs" / "ppo-s0", {1: 0.5, 2: 0.75})
    SummaryWriter(str(tmp_path / "logs" / "ppo-s1")).close()
    for place in ("ppo-s0/texts", "ppo-s1/texts", "."):
        with SummaryWriter(str(tmp_path / "logs" / place)) as writer:
            writer.add_text("notes", "hello", 0)
    trainer_state(tmp_path / "logs" / "ppo-s2", 40, 1.0)
    written(tmp_path, {"ppo-s3/checkpoint-10/trainer_state.json": b""})
    runs = imported(tmp_path / "logs")
    assert [(run.seed, run.done) for run in runs] == [(0, True), (1, False), (2, True), (3, False)]
    logs = written(tmp_path / "others", {"a/ppo-s0.jsonl": VERL, "b/x.jsonl": '{"input": "a"}\n', "b/y.jsonl": b""})
    assert len(imported(logs)) == 1  # files of another program, of which one is empty


# ---------------------------------------------------------------- attempts


def attempts(*parts: range, **counts: int) -> list[tuple[int, dict[str, float]]]:
    """Rows of the steps of each part; a counter goes on where the steps do not."""
    steps = [(part, step) for part, of_part in enumerate(parts) for step in of_part]
    return [(step, {"reward": step + part / 2, **{name: first + row for name, first in counts.items()}})
            for row, (part, step) in enumerate(steps)]  # fmt: skip


def as_table(rows: list[tuple[int, dict[str, float]]]) -> str:
    lines = [",".join(["step", *rows[0][1]]), *(",".join(map(str, (step, *row.values()))) for step, row in rows)]
    return "\n".join(lines) + "\n"


def as_printed(rows: list[tuple[int, dict[str, float]]]) -> str:
    return "".join(f"step:{s} - {' - '.join(f'{k}:{v}' for k, v in row.items())}\n" for s, row in rows)


FORMATS = {"ppo-s0.jsonl": lambda rows: verl(*rows), "ppo-s0.csv": as_table, "ppo-s0.log": as_printed}
LATER = {"resumed": (range(1, 8), range(4, 7)), "at its last step": (range(1, 8), range(7, 10))}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", LATER)
def test_the_later_attempt_counts_from_its_first_step_on_and_this_is_said(
    tmp_path: Path, name: str, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, later = LATER[case]
    source = written(tmp_path, {name: FORMATS[name](attempts(first, later))})
    words = ["import", str(source), "--into", str(tmp_path / "m" / "x"), "--match", BY_NAME.match, "--metric", "reward"]
    assert main([str(word) for word in words]) == 0
    (run,) = read_sweep(tmp_path / "m" / "x").runs
    kept = [step for step in first if step < later[0]]
    assert points(run) == {**{step: step for step in kept}, **{step: step + 0.5 for step in later}}
    gone = len(first) - len(kept)
    said = capsys.readouterr().out
    assert f"Rows: {len(first) + len(later)} read, {len(kept) + len(later)} used" in said
    assert f"rows not used: {gone} (superseded by a later attempt from step {later[0]} on)" in said
    assert read_provenance(run_folder(tmp_path / "m", run.id))["imported"]["unused"]


@pytest.mark.parametrize("name", FORMATS)
def test_steps_that_begin_again_are_refused_with_the_counter_that_goes_on(
    tmp_path: Path, name: str, worded: Worded
) -> None:
    source = written(tmp_path, {name: FORMATS[name](attempts(range(5), range(3), global_step=100))})
    worded(refused(source))
    (run,) = imported(source, step="global_step")
    assert points(run) == {100 + row: value for row, value in enumerate([0, 1, 2, 3, 4, 0.5, 1.5, 2.5])}
    assert "log/step" in run.curves.values if name.endswith("csv") else True
    nothing = written(tmp_path / "none", {name: FORMATS[name](attempts(range(5), range(8)))})
    worded(refused(nothing))


def test_event_files_of_two_attempts(tmp_path: Path, worded: Worded) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def run(name: str, *parts: list[tuple[str, int, float]]) -> Path:
        folder = tmp_path / name / "ppo-s0"
        for number, part in enumerate(parts):
            with SummaryWriter(str(folder), filename_suffix=f".{number}") as writer:
                for tag, step, value in part:
                    writer.add_scalar(tag, value, step)
            (file,) = folder.glob(f"*.{number}")
            file.rename(folder / f"events.out.tfevents.{number}")
        return folder.parent

    def steps(of: range, tag: str = "reward", more: float = 0.0) -> list[tuple[str, int, float]]:
        return [(tag, step, step + more) for step in of]

    (resumed,) = imported(run("a", steps(range(1, 8)), steps(range(5, 7), more=0.5)))
    assert points(resumed) == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5.5, 6: 6.5} and resumed.curves.superseded == 3
    (both,) = imported(run("b", steps(range(1, 4)), steps(range(1, 4), "loss")), metrics=("reward", "loss"))
    assert points(both) == points(both, "loss") == {1: 1, 2: 2, 3: 3} and both.curves.superseded == 0
    epochs = [[*steps(range(40)), *steps(range(2), "eval")], [*steps(range(40, 42)), *steps(range(1, 3), "eval")]]
    (run_of,) = imported(run("c", *epochs), metrics=("reward", "eval"))
    assert len(points(run_of)) == 42 and points(run_of, "eval") == {0: 0, 1: 1, 2: 2}
    again = run("d", steps(range(4)), steps(range(3), more=0.5))
    worded(refused(again))


@pytest.mark.processes
def test_two_offline_folders_of_one_run_that_both_begin_at_step_0(tmp_path: Path) -> None:
    for steps in (range(5), range(5, 8)):
        lines = [{"step": step, "global_step": step, "reward": step / 7} for step in steps]
        offline(tmp_path / "logs", job("a", "ppo", 0, lines, own=False))
    offline(tmp_path / "logs", job("b", "ppo", 1, []))
    keys = Naming("method.name", "seed")
    assert re.search(
        r"run-a\.wandb: step 0: this step appears again .*Fix: add --step global_step", refused(tmp_path / "logs", keys)
    )
    runs = imported(tmp_path / "logs", keys, step="global_step")
    assert points(runs[0]) == {step: step / 7 for step in range(8)}
    assert [run.done for run in runs] == [True, False]  # the other has no history


# ---------------------------------------------------------------- rows that would overwrite each other


def published(columns: str, rows: list[tuple[object, ...]]) -> str:
    return "\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n"


TASKS = [
    (*of, number / 7)
    for number, of in enumerate(itertools.product(("dqn", "ppo"), (1, 2), "ab", (0.1, 0.2), (10, 20, 30)))
]


def test_rows_of_one_run_and_step_that_differ_are_refused_with_the_columns_that_tell_them_apart(
    tmp_path: Path, worded: Worded
) -> None:
    source = written(tmp_path, {"t.csv": published("algo,seed,env,lr,step,reward", TASKS)})
    worded(refused(source, BY_COLUMN))
    worded(refused(source, Naming("algo", "seed", ("env",))))
    worded(refused(source, Naming("algo", "lr", ("env", "lr"))))
    worded(refused(source, Naming(seed="seed")))
    assert len(imported(source, Naming("algo", "seed", ("env", "lr")))) == 16


@pytest.mark.parametrize("order", [None, lambda row: row[2]])
def test_a_table_of_several_runs_that_is_named_as_one_is_refused(tmp_path: Path, order: Any, worded: Worded) -> None:
    rows = [(seed, env, step, seed + step / 7) for seed in (1, 2) for env in "ab" for step in range(3)]
    table = published("seed,env,step,reward", sorted(rows, key=order) if order else rows)
    worded(refused(written(tmp_path, {"ppo-s0.csv": table})))


def test_rows_that_only_repeat_others_are_dropped_and_counted(tmp_path: Path, worded: Worded) -> None:
    rows = [("dqn", 1, step, step / 7) for step in (1, 2, 3, 2)]
    (run,) = imported(written(tmp_path, {"t.csv": published("algo,seed,step,reward", rows)}), BY_COLUMN)
    assert points(run) == {1: 1 / 7, 2: 2 / 7, 3: 3 / 7}
    about = read_provenance(run_folder(tmp_path / "multirun", run.id))["imported"]
    assert (about["rows"], about["unused"]) == (4, {"repeated": 1})
    rows[-1] = ("dqn", 1, 2, 9.0)
    worded(refused(written(tmp_path, {"t.csv": published("algo,seed,step,reward", rows)}), BY_COLUMN))


def test_columns_of_one_name_are_refused_and_a_header_that_comes_again_is_not_a_row(
    tmp_path: Path, worded: Worded
) -> None:
    worded(refused(written(tmp_path / "a", {"ppo-s0.csv": "step,ep len,ep_len\n1,2,3\n"})))
    (run,) = imported(written(tmp_path / "b", {"ppo-s0.csv": "step,reward\n1,1\n2,2\nstep,reward\n2,3\n3,4\n"}))
    assert points(run) == {1: 1, 2: 3, 3: 4}


# ---------------------------------------------------------------- cells


def column(*cells: str, beside: tuple[str, ...] = (), delimiter: str = ",") -> str:
    """A table with a metric of these cells, and perhaps another."""
    columns = [["step", *map(str, range(1, len(cells) + 1))], ["reward", *cells], *([["x", *beside]] if beside else [])]
    return "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in zip(*columns, strict=True)) + "\n"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (column("960.5", "1,234.5", "2,400.0"), (960.5, 1234.5, 2400)),
        (column("960", "1,234", "1,234,567"), (960, 1234, 1234567)),
        (column("960", "1,234", "2,400", beside=("0.5", "0.25", "1")), (960, 1234, 2400)),
        (column("0,5", "1,234", "12,5"), (0.5, 1.234, 12.5)),
        (column("960,5", "1.234,5", "2.400"), (960.5, 1234.5, 2400)),
        (column("960", "1.234", "2.400", beside=("0,5", "0,6", "1"), delimiter=";"), (960, 1234, 2400)),
        (column("1.234", "2.400", "3.5"), (1.234, 2.4, 3.5)),
        (column("1\u202f234,5", "1 234 567,5", "3"), (1234.5, 1234567.5, 3)),
        (column("1'234.5", "2", "3"), (1234.5, 2, 3)),
        (column("73.1%", "74 %", "100%"), (0.731, 0.74, 1)),
        (column("np.float64(1.5)", "numpy.float32(2)", "np.int64(3)"), (1.5, 2, 3)),
        (column(" 5 ", "1e3", "1_000"), (5, 1000, 1000)),
        (column("\u22125.5", "+7", "-1.5E-2"), (-5.5, 7, -0.015)),
        (column("inf", "-Infinity", "True"), (float("inf"), float("-inf"), 1)),
        (column("NaN", "", "3"), (None, None, 3)),
        (column("N/A", "None", "-"), None),
        (column("960", "1,234", "2,400"), "line 3: reward = '1,234' may be 1234 or 1.234, and no other cell says"),
        (column("0.5", "0,6", "1"), "line 3: reward = '0,6' has another decimal mark than line 2"),
        (column("73.1%", "0.74", "1"), "line 3: reward = '0.74' has another use of the percent sign than line 2"),
        (column("1", "$5", "3"), "line 3: reward = '$5': not a number"),
        (column("1", "2", "3 pts"), "line 4: reward = '3 pts': not a number"),
        (column("1", "12,34,567", "3"), "line 3: reward = '12,34,567': not a number"),
    ],
)  # fmt: skip
def test_a_cell_is_read_in_the_notation_of_its_column_or_refused_by_line(
    tmp_path: Path, text: str, values: tuple[float | None, ...] | str | None
) -> None:
    source = written(tmp_path, {"ppo-s0.csv": text})
    if isinstance(values, str):
        with pytest.raises(BadImport, match=re.escape(values)):
            imported(source)
    elif values is None:
        with pytest.raises(BadImport, match="no run recorded this metric"):
            imported(source)
    else:
        (run,) = imported(source)
        assert points(run) == {step: value for step, value in enumerate(values, start=1) if value is not None}


def test_steps_with_thousands_and_columns_that_nothing_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, {"ppo-s0.csv": 'step,reward,note\n"500",1%,5\n"1,000",2%,five\n"1,500",3%,\n'})
    words = ["--into", str(tmp_path / "m" / "x"), "--match", str(BY_NAME.match), "--metric", "reward"]
    assert main(["import", str(source), *words]) == 0
    (run,) = read_sweep(tmp_path / "m" / "x").runs
    assert points(run) == {500: 0.01, 1000: 0.02, 1500: 0.03} and "note" not in run.curves.values
    said = capsys.readouterr().out
    assert "* Recorded, not read: 1 metric (note). --metric reads more." in said
    assert "reward: '1%' is read as 0.01" in said


def test_text_in_other_logs_is_read_as_a_number_or_refused(tmp_path: Path) -> None:
    (run,) = imported(written(tmp_path, {"ppo-s0.jsonl": verl((1, {"reward": "0.5"}), (2, {"reward": True}))}))
    assert points(run) == {1: 0.5, 2: 1}
    for number, (name, text, said) in enumerate((
        ("ppo-s0.jsonl", verl((1, {"reward": 1}), (2, {"reward": "1,234.5"})), "line 2: reward = '1,234.5'"),
        ("ppo-s0.log", "step:1 - reward:0.5\nstep:2 - reward:73.1%\n", "step 2: reward = '73.1%'"),
    )):  # fmt: skip
        with pytest.raises(BadImport, match=re.escape(said)):
            imported(written(tmp_path / str(number), {name: text}))


# ---------------------------------------------------------------- memory

REPORTED = """
import sys
from pathlib import Path
from analysis.__main__ import main
assert main(["report", sys.argv[1], "--into", sys.argv[1] + ".d/m", "--group", "algo", "--metric", "a"]) == 0
# not getrusage, whose peak begins with that of the process which starts this one
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.processes
@pytest.mark.parametrize("end", ["csv", "jsonl"])
def test_a_report_takes_at_most_half_as_much_again_as_the_columns_asked_for(tmp_path: Path, end: str) -> None:
    peaks, rows, others = [], 300_000, "0.125,word" + 9 * ",7"
    (tmp_path / "config.yaml").write_text("algo: ppo\n")
    for number in (100, rows):
        with (log := tmp_path / f"run.{end}").open("w") as file:
            file.write("" if end == "jsonl" else "step,a,b,note,c,d,e,f,g,h,i,j,k\n")
            for row in range(number):
                line = f'{{"step": {row}, "a": {row / 7}, "b": 0.5, "c": 1, "d": 2, "e": 3, "f": "x"}}'
                file.write(f"{line if end == 'jsonl' else f'{row},{row / 7:.6f},{others}'}\n")
        command = [sys.executable, "-c", REPORTED, str(log)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        peaks.append(1024 * int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 1.5 * 8 * 2 * rows
