"""Certificates: the planted bugs are found, each with its first difference, and a sound trainer has none."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import __main__ as launcher
from launcher import files
from launcher.application import KEY, name
from launcher.commands import certify
from launcher.commands.verify import first_difference, metrics
from launcher.config import identity
from launcher.run import lifecycle
from launcher.run.folder import FORMAT, attempt_folder, multirun_of, run_folder
from launcher.run.lifecycle import RunState, read_state, write_state
from launcher.worker import certified, pickled
from launcher.worker.attempt import Attempt, Lines
from launcher.worker.certified import digests
from launcher.worker.hydra_app import NAME
from tests.launcher.certifiable import BUG, BUGS, STEPS, Certifiable
from tests.launcher.conftest import ROOT
from tests.launcher.test_hydra_sweep import command
from tests.waiting import until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tests.launcher.certifiable that has not begun."""
    config = {KEY: f"{Certifiable.__module__}:{Certifiable.__name__}", "seed": 3, "trainer": {"steps": STEPS}}
    digest = identity.identity("none", config)
    folder = run_folder(tmp_path_factory.mktemp("certify") / "planned", identity.run_id(digest))
    folder.mkdir(parents=True)
    record = {"format": FORMAT, "id": folder.name, "identity": {"version": identity.VERSION, "hash": digest}}
    files.write_atomic(folder / "config.yaml", files.dump_yaml({**record, "base": "none", **config}))
    write_state(folder, lifecycle.created(folder.name))
    return folder


@pytest.fixture(scope="module")
def reference(frozen: Path) -> Path:
    [(folder, *_)] = certify.repeat(frozen, None)
    assert read_state(folder).state == RunState.DONE, read_state(folder)
    return folder


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_what_it_changes_first_is_named(frozen: Path, reference: Path, bug: str) -> None:
    after, what, step = BUGS[bug]
    [(folder, was_ended, _)] = certify.repeat(frozen, None, [("after", after)], more={BUG: bug})
    found = first_difference(reference, folder)
    assert was_ended == 1 and found is not None and (found.what, found.step) == (what, step), found


def reached(certificate: dict[str, Any]) -> int:
    """The number of repetitions without those of moments that came when a run had ended: the machine decides it."""
    late = re.compile(r"killed after [\d.]+ s, which was not reached")
    return sum(not late.fullmatch(result["how"]) for result in certificate["results"])


def test_a_sound_trainer_is_equal_wherever_it_is_killed(frozen: Path) -> None:
    certificate = certify._certificate(frozen, None, kills=12, seed=1)
    assert certificate is not None and certificate["equal"] == certificate["of"], certificate["results"]
    assert certificate["kills"] == 12 >= certificate["kills_in_steps"] >= 9 and 4 + 3 <= reached(certificate) < 4 + 12
    assert certificate["killed"] == reached(certificate) - 4  # without those where no moment came before the end
    assert certificate["edges"] == 4 * 3 + 2 * 2 and certificate["edges_killed"] == 9 and not certificate["spread"]
    assert {"data order", "prompts", "random state", "optimizer", "average"} < {*certificate["compared"]}


@pytest.mark.parametrize("warm", [False, True])
def test_an_attempt_that_does_not_end_in_time_is_killed_and_is_a_difference(
    frozen: Path, reference: Path, warm: bool
) -> None:
    class Workers:
        left = 0

        def submit(self, folder: Path) -> None:
            self.left += 1

        def poll(self, timeout: float) -> list[int]:
            return [0] * (not self.left)

        def cancel(self, kill: bool) -> None:
            self.left -= kill

    workers: Any = Workers() if warm else None
    [(folder, was_ended, _)] = certify.repeat(frozen, workers, [("after", 4)], limit=0.01)
    found = first_difference(reference, folder)
    assert found is not None and found.what == "end" and was_ended == 0
    assert found.detail == "it ended as failed (it did not end within 0 s)"


def saved(value: Any, protocol: int | None) -> bytes:
    """A pickle of this protocol, or what torch.save writes."""
    import torch

    if protocol is not None:
        return pickle.dumps(value, protocol=protocol)
    torch.save(value, buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [2, 5, None])
def test_a_checkpoint_is_compared_by_its_values_and_not_by_which_of_them_are_one_object(
    tmp_path: Path, protocol: int | None
) -> None:
    import torch

    def digest(value: Any) -> str | None:
        path = tmp_path / "state"
        path.write_bytes(saved(value, protocol))
        return pickled.digest(path, path.read_bytes())

    generator, text = np.random.default_rng(0), "-".join(["a", "b"])
    state = {"weights": generator.normal(size=4), "average": np.ones(4), "random": generator.bit_generator.state}
    state |= {"names": [text, text], "keys": {"a", "b", "c"}, "ordered": OrderedDict(a=1), "scale": np.float32(0.5)}
    state |= {} if protocol else {"model": torch.nn.Linear(2, 2).state_dict(), "torch": torch.get_rng_state()}
    read = copy.deepcopy(state) | {"names": [text, "-".join(["a", "b"])]}
    assert saved(state, protocol) != saved(read, protocol) and digest(state) == digest(read) is not None
    several = [0, 8, 16, 24]  # which one place of a set's table is for, so that it keeps the first where it was added
    assert list(set(several)) != list(set(reversed(several)))
    assert digest(state | {"keys": set(several)}) == digest(state | {"keys": set(reversed(several))})
    for key, other in [
        ("weights", np.nextafter(state["weights"], 9)),
        ("names", [text, "b"]),
        ("keys", {"a", "b"}),
        ("ordered", {"a": 1}),
        ("scale", np.float64(0.5)),
        *(
            []
            if protocol
            else [("torch", torch.get_rng_state().flip(0)), ("model", torch.nn.Linear(2, 2).state_dict())]
        ),
    ]:
        assert digest(state | {key: other}) != digest(state), key


@pytest.mark.parametrize("protocol", [2, 5, None])
def test_the_folder_of_a_repetition_does_not_count(tmp_path: Path, protocol: int | None) -> None:
    def digest(of: str, weight: float = 1.0) -> dict[str, str]:
        job = tmp_path / of / "runs" / "id" / "job"
        job.mkdir(parents=True, exist_ok=True)
        value = {"weight": weight, "best": str(job / "best.pt"), "place": job, "line": f"see {job}".encode()}
        (job / "state").write_bytes(saved(value, protocol))
        return digests(job)

    assert digest("tmp_one") == digest("tmp_two") != digest("tmp_two", 2.0)


def test_a_time_in_a_pickle_does_not_count_but_weights_of_a_time_do(tmp_path: Path) -> None:
    def digest(**state: Any) -> str | None:
        return pickled.digest(tmp_path, pickle.dumps(state))

    assert digest(timestamp="1 May") == digest(timestamp="2 May")
    assert digest(times=[1, 2.5]) == digest(times=[1, 3.5]) != digest(times=None)
    assert digest(step=1, train_time=1.5) == digest(step=1, train_time=2.5) != digest(step=2, train_time=1.5)
    weights = {"time_embedding.weight": np.zeros(2)}
    assert digest(**weights) != digest(**{"time_embedding.weight": np.ones(2)})


@pytest.mark.parametrize("content", [b"", b"\x80\x04junk", b"PK\x03\x04", pickle.dumps(1)[:-1], b"text"])
def test_what_is_no_pickle_is_compared_by_its_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert pickled.digest(tmp_path / "file", content) is None
    one = digests(tmp_path)
    (tmp_path / "file").write_bytes(content + b"x")
    assert one.keys() == {"file"} and one != digests(tmp_path)


def test_nothing_that_a_pickle_names_is_called(tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "called",)

    assert pickled.digest(tmp_path, pickle.dumps(Calls())) and not (tmp_path / "called").exists()


def written(value: Any, name: str) -> bytes:
    """A table with these columns, or its values in the format of the name."""
    if name.endswith((".csv", ".tsv")):
        rows = csv.writer(text := io.StringIO(), delimiter=value.get("_", ","))
        rows.writerows([[key for key in value if key != "_"], [one for key, one in value.items() if key != "_"]])
        return text.getvalue().encode()
    if name.endswith(".safetensors"):
        header = json.dumps({"__metadata__": {key: str(one) for key, one in value.items()}}).encode()
        return len(header).to_bytes(8, "little") + header + b"data"
    return pickle.dumps(value) if name.endswith(".pkl") else json.dumps(value).encode() + b"\n"


@pytest.mark.parametrize("kind", ["json", "jsonl", "yaml", "yml", "csv", "tsv", "safetensors", "pkl", "txt"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_with_equal_values_are_equal(tmp_path: Path, kind: str, packed: bool) -> None:
    name = f"a.{kind}"

    def digest(of: str, when: int = 0, **value: Any) -> str:
        job = tmp_path / of / "runs" / "id" / "job"
        job.mkdir(parents=True, exist_ok=True)
        whole = written({key: one.format(job) if key == "at" else one for key, one in value.items()}, name)
        place = job / (f"{name}.gz" if packed else name)
        place.write_bytes(gzip.compress(whole, mtime=when) if packed else whole)
        assert not certified.is_log(place)
        (one,) = digests(job).values()
        place.unlink()
        return one

    value = {"x": 0.5, "at": "{}/args"}
    assert digest("one", **value) == digest("two", 5, **value) != digest("one", **value | {"x": 0.25})
    if not name.endswith((".txt", ".pkl")):
        assert digest("one", **value, fit_time=1) == digest("two", **value, fit_time=2)
    if not name.endswith((".txt", ".csv", ".tsv")):
        assert digest("one", **value) == digest("one", **dict(reversed(value.items())))
    if name.endswith((".csv", ".tsv")):
        assert digest("one", _=";", fit_time=1, x=1) != digest("one", _=";", fit_time=1, x=2)


@pytest.mark.parametrize(
    ("name", "first", "log"),
    [
        ("train.log", "", True),
        (".hydra/config.yaml", "", True),
        ("wandb/a/b.json", "", True),
        ("results.yaml", "step: 1", False),
        ("predictions.csv", "0,0.5", False),
        ("predictions.csv", "id,criterion,prediction", False),
        ("progress.csv", "loss,total_timesteps", True),
        ("history.csv", "epoch,loss", True),
        ("monitor.csv", '#{"t_start": 1.5}', True),
        ("answers.jsonl", '{"id": 1, "text": "each step, each epoch"}', False),
        ("log.jsonl", '{"loss": 1.5, "global_step": 1}', True),
    ],
)
def test_a_table_is_a_log_if_it_has_a_column_of_steps(tmp_path: Path, name: str, first: str, log: bool) -> None:
    path = tmp_path / "job" / name
    path.parent.mkdir(parents=True)
    path.write_text(f"{first}\n1,2,3\n")
    assert certified.is_log(path) == log


@pytest.mark.parametrize(("application", "left"), [(NAME, ["cost/episode", "perf/accuracy"]), (name(), [])])
def test_only_the_clocks_of_its_application_are_left_out(tmp_path: Path, application: str, left: list[str]) -> None:
    clocks = [
        "timing_s/gen",
        "timing_per_token_ms/gen",
        "perf/throughput",
        "perf/mfu/actor",
        "perf/max_memory_gb",
    ]
    row = dict.fromkeys(["loss", "cost/episode", "perf/accuracy", "step_time", *clocks], 1.0)
    files.write_atomic(tmp_path / "config.yaml", files.dump_yaml({"format": FORMAT, KEY: application}))
    files.write_atomic(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "attempt": 1, **row}) + "\n")
    (found,) = metrics(tmp_path)
    assert [*found] == ["step", "loss", *left]


@pytest.mark.parametrize(
    ("name", "clocked"),
    [
        *((name, True) for name in ("timestamps", "step_times", "wall_clock", "perf/date", "finished_at", "fitTime")),
        *(
            (name, False)
            for name in ("update", "beta", "items", "timesteps", "precision_at_5", "secondary", "candidate")
        ),
    ],
)
def test_names_of_times(name: str, clocked: bool) -> None:
    assert pickled.clocked(name) == clocked


def test_the_final_value_of_a_metric_is_what_a_report_compares(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "config.yaml", files.dump_yaml({"format": FORMAT, KEY: name()}))
    lines = [{"step": step, "attempt": 1, "loss": step / 2, "count": step, "on": True} for step in range(1, 21)]
    lines[7]["eval"], lines[11]["eval"] = 0.5, 0.25
    files.write_atomic(tmp_path / "metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    finals = certify._finals(tmp_path)
    assert (finals["loss"], finals["count"], finals["eval"], "on" in finals) == (9.75, 19.5, 0.25, False)


@pytest.mark.parametrize("log", ["log.jsonl", "log.csv"])
def test_lines_that_a_log_has_twice_are_a_difference(tmp_path: Path, log: str) -> None:
    def run(of: str, *steps: Any) -> Path:
        job = tmp_path / of / "runs" / "id" / "job"
        job.mkdir(parents=True)
        write_state(job.parent, lifecycle.created("id"))
        files.write_atomic(job.parent / "config.yaml", files.dump_yaml({"format": FORMAT, KEY: name()}))
        rate = f'"steps_per_sec": {of[-1]}'
        lines = [f'{{{rate}, "step": {step}, "x": 1}}' if log.endswith("l") else f"1,{step}" for step in steps]
        (job / log).write_text("\n".join([*([] if log.endswith("l") else ["x,step"]), *lines, "torn"]))
        (job / "monitor.csv").write_text(f'#{{"t_start": {of[-1]}}}\nr,l\n1,{of[-1]}\n')
        (job / "empty.csv").touch()
        assert certified.is_log(job / "empty.csv")
        return job.parent

    then, twice = run("r1", 1, 2, 2, 3), run("r2", 1, 2, 2, 2, 3)
    found = first_difference(then, twice, ("log",))
    assert found is not None and str(found).endswith(f"first in the log: {log} has 3 lines of this step in place of 2")
    assert found.step == 2
    for other in (run("r3", 1, 2, 2, 3), run("r4", 3)):  # a log that was begun anew
        assert first_difference(then, other, ("log",)) is None


def listening(folder: Path) -> certified.CertifiedAttempt:
    """An attempt whose job is in a folder, and that no audit hook tells of files."""
    (folder / "job").mkdir(parents=True)
    attempt = certified.CertifiedAttempt.__new__(certified.CertifiedAttempt)
    attempt.folder, attempt._end, attempt._unheard, attempt._read = folder, ("", 0), dict(certified._SAVES), set()
    attempt._job, attempt._process = f"{folder.resolve()}/job/", os.getpid()
    attempt._after, attempt._writes = certified.START, Counter()
    attempt._outside = Lines(multirun_of(folder).parent / certified.OUTSIDE)
    attempt._passed = re.compile(f"{re.escape(str(multirun_of(folder).parent))}/|{certified._SYSTEMS}")
    return attempt


@pytest.mark.parametrize(
    ("opened", "equal", "refused"),
    [
        (["1w", "1w", "2r"], True, True),  # a checkpoint
        (["1r", "1w", "1r", "2r", "2w", "3r"], True, True),  # a file that each adds to
        (["1w", "2r"], True, False),  # a cache
        (["1w", "2r"], False, True),  # or a checkpoint of one step
        (["1w", "2w", "1r", "2r"], False, False),  # where each begins anew
        (["1r", "2r"], False, False),
    ],
)
def test_repetitions_that_read_what_another_has_written_are_refused(
    tmp_path: Path, opened: list[str], equal: bool, refused: bool
) -> None:
    scratch, place = tmp_path / "scratch", tmp_path / "kept" / "checkpoint"
    attempts = {by: listening(scratch / by / "runs" / "id") for by in "123"}
    place.parent.mkdir()
    for by, how in opened:
        for path in (place, attempts[by].folder / "job" / "own", tmp_path / ".cache" / "a", "/proc/self/stat"):
            attempts[by]._audited("open", (str(path), None, os.O_RDONLY if how == "r" else os.O_WRONLY))
        place.touch()
    results = [{"difference": None}] if equal else [{"difference": {"step": 1}}]
    found = certify._shared(scratch / "planned" / "runs" / "id", results)
    assert found == (str(place) if refused else None)


def test_a_renamed_file_is_written_and_a_file_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    attempt = listening(tmp_path / "scratch" / "1" / "runs" / "id")
    attempt._audited("open", (str(tmp_path / "absent"), "r", os.O_RDONLY))
    attempt._audited("os.rename", (str(attempt.folder / "job" / "draft"), str(tmp_path / "checkpoint"), -1, -1))
    lines = files.json_lines(tmp_path / "scratch" / certified.OUTSIDE)
    assert lines == [{"by": "1", "path": str(tmp_path / "checkpoint"), "writes": True}]


class Killed(BaseException):
    """An attempt was."""


@pytest.mark.parametrize("logs", [False, True])
def test_a_resumed_program_is_killed_at_the_edge_that_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: bool
) -> None:
    here, kept, logged = [""], {"step": 0}, list[int]()

    def kill(*given: Any) -> None:
        raise Killed

    def act(attempt: certified.CertifiedAttempt, what: str, event: str, *given: Any) -> None:
        here[0] = what
        attempt._audited(event, given)

    def attempt(of: str, end: tuple[str, Any] = ("", 0)) -> str | None:
        """Resume at the step that is kept, save each second step, and end as is asked; before what it was killed."""
        if not (folder := tmp_path / of / "runs" / "id").exists():
            listening(folder)
            kept["step"] = 0
        shutil.rmtree(folder / "job")
        made, job = listening(folder), folder / "job"
        made._end, made.attempt = end, 1
        attempt_folder(folder, 1).mkdir(parents=True, exist_ok=True)
        (folder / certified.WRITES).write_bytes(b"")
        try:
            for step in range(kept["step"] + 1, 7):
                here[0] = f"log {step}"
                if logs:
                    made.log(step, {})
                if step % 2 == 0:
                    act(made, f"draft {step}", "open", str(job / "draft"), None, os.O_WRONLY | os.O_TRUNC)
                    act(made, f"name {step}", "os.rename", str(job / "draft"), str(job / "kept"), -1, -1)
                    kept["step"] = step
        except Killed:
            return here[0]
        return None

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(Attempt, "log", lambda self, step, metrics: logged.append(step))
    attempt("first")
    first = tmp_path / "first" / "runs" / "id"
    edges = certify._edges(first, {line for _, line, _ in certify._writes(first)})
    before = {number: attempt(f"of {number}", end) for number, (_, end) in enumerate(edges)}
    saves = [f"{what} {step}" for step in (2, 4, 6) for what in ("draft", "draft", "name")]
    assert Counter(before.values()) == Counter(saves + (["log 3", "log 5"] if logs else []))
    pairs = [(a, b) for a in before for b in before if edges[a][0] < edges[b][0]]
    assert (len(pairs) > 20) == logs  # without its steps, nothing tells to where a program has come back
    for a, b in pairs:
        assert [attempt(f"{a} {b}", edges[number][1]) for number in (a, b)] == [before[a], before[b]]
    logged.clear()
    assert not logs or (attempt("log", edges[3][1]), logged) == ("log 3", [1, 2])  # nor is its line written


def test_files_that_are_opened_in_cpp_or_rust_are_edges_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    attempt = listening(tmp_path := tmp_path / "1" / "runs" / "id")
    monkeypatch.setattr(sys, "audit", lambda event, *given: attempt._audited(event, given))
    monkeypatch.setattr(torch, "save", torch.save)
    for imported in [one for one in sys.modules if one.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, imported)
    sys.addaudithook(lambda event, given: attempt._audited(event, given) if event in ("import", "exec") else None)
    import safetensors.torch
    from safetensors.numpy import save_file

    attempt._unheard.clear()
    torch.save({"x": 1}, tmp_path / "job" / "a.pt")
    torch.save({"x": 1}, f=str(tmp_path / "job" / "b.pt"))
    torch.save({"x": 1}, io.BytesIO())
    torch.save({"x": 1}, tmp_path / "elsewhere.pt")
    for _ in range(2):
        safetensors.torch.save_file({"x": torch.ones(1)}, filename=tmp_path / "job" / "c.safetensors")
    save_file({"x": np.ones(1)}, tmp_path / "job" / "d.safetensors")
    assert torch.load(tmp_path / "job" / "b.pt") == {"x": 1}
    names = ["a.pt", "b.pt", "c.safetensors", "c.safetensors", "d.safetensors"]
    lines = [line for _, line, _ in certify._writes(tmp_path)]
    assert lines == [line for name in names for line in (name, f"{name}, emptied")]


PROGRAM = """
    import json, os, random, time
    from pathlib import Path
    import hydra, rlsweep
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("config", {"bug": "", "seed": 0, "steps": 4})

    @hydra.main(version_base=None, config_name="config")
    def main(config):
        run = rlsweep.context()
        kept = run.folder / "checkpoint.json"
        made = {"step": 0, "weights": 1.0, "momentum": 0.0}
        if kept.exists():
            made = json.loads(kept.read_text())
            made["momentum"] *= config.bug != "momentum"
        if config.bug == "waits":
            Path("pid").write_text(str(os.getpid()))
            time.sleep(600)
        generator = random.Random(None if config.bug == "seed" else config.seed)
        noise = [generator.random() for _ in range(config.steps)]
        for step in range(made["step"] + 1, config.steps + 1):
            momentum = 0.9 * made["momentum"] + noise[step - 1]
            made = {"step": step, "weights": made["weights"] - momentum, "momentum": momentum}
            if config.bug == "raises":
                raise ValueError("it cannot train")
            rlsweep.log(step, {"reward": made["weights"], "step_time": time.time(), "steps_per_second": time.time()})
            draft = kept if config.bug == "in place" else kept.with_name("draft")
            draft.write_text(json.dumps(made))
            draft.rename(kept)
        return made["weights"]

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("bug", "code", "said"),
    [
        ("", 0, "bit-equal in 5 of 5 repetitions, with 2 kills in 1"),
        ("momentum", 3, "from step"),
        ("in place", 3, "first in the end: it ended as failed (JSONDecodeError"),
        ("seed", 3, "the standard deviation of the final reward between undisturbed repetitions is"),
        ("raises", 4, "the undisturbed run ended as failed: ValueError: it cannot train"),
    ],
)
def test_a_program_of_hydra_gets_a_certificate(tmp_path: Path, bug: str, code: int, said: str) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    words = ["--kills", "2", "--seed", "42", "python", "train.py", f"bug={bug}"]
    output = command(tmp_path, "certify", *words, code=code)
    assert said in output, output
    made = {path.name for path in tmp_path.iterdir()} - {"train.py", "__pycache__"}
    assert made == (set() if code == 4 else {"multirun"})
    if code == 4:
        return
    (place,) = tmp_path.glob("multirun/*/certificate.json")
    certificate = json.loads(place.read_text())
    assert certificate["compared"] == ["checkpoint.json", "metrics", "summary"]
    assert "train.log" in certificate["not_compared"] and "not compared: .hydra/config.yaml, " in output
    assert certificate["edges"] == 4 * 3 + 3  # in each step a draft, the draft when it is empty, its name; then a log
    assert "killed at write 1 to " in certificate["results"][4]["how"]
    killed = (5, 2) if bug != "in place" else (6, 2)  # an empty checkpoint ends the run
    assert (reached(certificate), certificate["edges_killed"]) == killed
    assert place.with_suffix(".txt").read_text().splitlines()[0] in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_certification_that_was_ended(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "tmp").mkdir()
    program, words = str(Path(sys.executable).with_name("rlsweep")), ["certify", "python", "train.py", "bug=waits"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([program, *words], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    pid = until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGTERM else -number)
    until(lambda: lifecycle.process_start(int(pid)) is None)
    assert number == signal.SIGKILL or not [*(tmp_path / "tmp").iterdir()]


SILENT = """
    from pathlib import Path
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig

    ConfigStore.instance().store("config", {"keeps": False})

    @hydra.main(version_base=None, config_name="config")
    def main(config):
        if config.keeps == "table":  # which is not read
            Path(HydraConfig.get().runtime.output_dir, "table.csv").write_text("step,x\\n1,1\\n1,2\\n")
        kept = Path("checkpoint")
        if config.keeps is True and not kept.exists():
            for step in range(3):
                kept.write_text(str(step))
        return float(kept.read_text() if config.keeps is True else 2)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("keeps", "code", "said"),
    [
        ("false", 0, "killed at 0 of 0 edges"),
        ("table", 0, "the job's metrics: not read: job/table.csv: step 1: this step appears again"),
        (
            "true",
            4,
            "checkpoint: a repetition has read what another one has written. Fix: write it below rlsweep.context",
        ),
    ],
)
def test_a_program_without_metrics_is_compared_by_what_it_returns(
    tmp_path: Path, keeps: str, code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SILENT))
    output = command(tmp_path, "certify", "--kills", "1", "python", "train.py", f"keeps={keeps}", code=code)
    assert said in output and ("compared: summary" in output) == (code == 0), output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-program"], "no-such-program hydra/sweeper=rlsweep -m: it plans no run"),
        (["--kills", "0", "python", "train.py"], "--kills = 0: must be 1 or more"),
        (["--run", "zz", "python", "train.py"], "zz"),
        (
            ["python", "train.py", "nothing=1"],
            "it plans no run. Fix: correct what it prints, or name a program of @hydra.main",
        ),
        (["experiment=nothing"], "experiment"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_is_written(
    tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    assert said in command(tmp_path, "certify", *words, code=2)
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "__pycache__"}


def test_plan_says_what_the_spread_of_repetitions_hides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "experiment=quickstart", f"multirun={tmp_path}"]
    assert launcher.main(words) == 0 and "Repetitions" not in capsys.readouterr().out
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / certify.NAME).write_text(json.dumps({"spread": {"eval/reward_mean": 0.01}}))
    assert launcher.main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    (effect,) = re.findall(r"differences in eval/reward_mean \(\w+\) of ([\d.]+) sd", said)
    (least,) = re.findall(r"Repetitions of one run differ by 0\.01, so that none below ([\d.]+) is detected", said)
    assert float(least) == pytest.approx(float(effect) * 0.01 * 2**0.5, rel=0.05)
    assert launcher.main([*words, "analysis.primary.summary=auc"]) == 0
    assert "Repetitions" not in capsys.readouterr().out
    for damaged in ('{"spread": ', "{}", '{"spread": []}'):
        (tmp_path / "quickstart" / certify.NAME).write_text(damaged)
        assert launcher.main(words) == 2
        assert "certificate.json: not a certificate of this version. Fix: delete it" in capsys.readouterr().err


@pytest.mark.train
@pytest.mark.timeout(600)
def test_training_in_one_process_is_equal_wherever_it_is_killed(tmp_path: Path) -> None:
    words = "experiment=quickstart trainer.steps=5 trainer.checkpoint_every=2 trainer.eval_prompts=4 "
    words += "task.train_prompts=20 task.warm_start.steps=20 "
    words += "verl.data.train_batch_size=4 verl.actor_rollout_ref.actor.ppo_mini_batch_size=2"
    command(ROOT, "certify", *words.split(), f"multirun={tmp_path}", "--kills", "4")
    certificate = json.loads((tmp_path / "quickstart" / certify.NAME).read_text())
    assert certificate["equal"] == certificate["of"]
    assert (certificate["kills"], certificate["edges"]) == (4, 3 * 3 + 2)
    assert {"data order", "prompts", "weights", "optimizer", "state", "evaluations"} < {*certificate["compared"]}
