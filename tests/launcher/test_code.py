"""Code and data are part of what a run is: what is recorded, what counts as a change, what a launch does about it."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from analysis.data.mixed_code import mixed_code
from analysis.data.sweep import read_sweep
from analysis.findings.study import study
from analysis.report.headline import answer
from analysis.spec.settings import settings
from launcher import files
from launcher.config import content, identity
from launcher.errors import InvalidPlan
from launcher.execution import checks
from launcher.files import content_digest
from launcher.planning import freeze
from launcher.run import code, lifecycle
from launcher.run.code import Code
from launcher.run.folder import read_config, run_folder
from launcher.run.lifecycle import Claim, RunState, State, find_state, read_state, started, write_state
from launcher.worker import provenance
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import make, refusal
from tests.launcher.made import make_checkpoint, make_plan, make_run
from trainer_ext.application import Application, hub
from trainer_ext.scoring import rewards

#: No machine of the tests has a GPU, and a run of this model asks for one.
NO_GPU = ("model.resources.devices=0",)
ADHOC = ("task=gsm8k", "model=qwen2_5_0_5b", "experiment.name=adhoc")
TEXT = '''"""A module."""
import math


def width(x):
    """Of x."""
    return 2 * x
'''


# ---------------------------------------------------------------- what counts as a change


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (TEXT.replace("A module", "Another module").replace("Of x.", "Of y, and\n    of z."), True),
        (TEXT.replace("    return", "    # why\n\n    return").replace("2 * x", "(2\n        * x)"), True),
        (TEXT.replace('    """Of x."""\n', ""), True),
        (TEXT.replace("2 * x", "3 * x"), False),
        (TEXT + 'NAME = "x"\n', False),
    ],
)
def test_comments_docstrings_and_layout_are_no_change_and_everything_else_is(tmp_path, after, same):
    (tmp_path / "one.py").write_text(TEXT)
    (tmp_path / "two.py").write_text(after)
    one, two = code.hashes(tmp_path / "one.py"), code.hashes(tmp_path / "two.py")
    assert one[0] != two[0] and (one[1] == two[1]) is same


def test_a_file_that_is_not_python_counts_by_its_bytes(tmp_path):
    for name, text in (("a.so", b"\0x"), ("b.py", b"def ("), ("c.py", b"\xff\xfe")):
        (tmp_path / name).write_bytes(text)
        digest, syntax = code.hashes(tmp_path / name)
        assert digest == syntax


HEALTH = "trainer_ext/methods/health.py"
LAUNCHING = ("launcher/text.py", "hydra_plugins/rlsweep/__init__.py")


def record(multirun, libraries=None, **changed):
    """A record of the present code with other hashes for some of its modules; its id."""
    now = {name: code.hashes(ROOT / name) for name in (HEALTH, "trainer_ext/metrics.py", *LAUNCHING)}
    both = [{name: changed.get(name, hashes[place]) for name, hashes in now.items()} for place in (0, 1)]
    return code.keep(multirun, Code(*both, libraries={**code.versions(), **(libraries or {})}))


def test_a_record_is_compared_with_the_files_as_they_are_now(tmp_path):
    assert code.changes(code.read(tmp_path, record(tmp_path))) == {}
    # The launcher computes nothing.
    other = record(tmp_path, **dict.fromkeys((HEALTH, *LAUNCHING), "0" * 16))
    assert code.changes(code.read(tmp_path, other)) == {HEALTH: ("0" * 16, code.hashes(ROOT / HEALTH)[1])}
    gone = {"trainer_ext/no_such.py": "1", "no_such_package/x.py": "2"}
    assert code.changes(Code(modules=gone)) == {name: (was, code.GONE) for name, was in gone.items()}
    then = code.changes(code.read(tmp_path, record(tmp_path, libraries={"torch": "1.0"})))
    assert then == {"torch": ("1.0", code.versions()["torch"])}
    assert code.said("torch", then["torch"]) == f"torch 1.0 is {code.versions()['torch']}"


@pytest.mark.parametrize(
    ("file", "syntax", "names"),
    [("1", "of another Python", []), ("9", "2", []), ("9", "3", ["a.py"])],
)
def test_the_syntax_or_the_bytes_alone_do_not_make_a_change(file, syntax, names):
    first = Code(modules={"a.py": "1"}, syntax={"a.py": "2"})
    assert code.between([first, Code(modules={"a.py": file}, syntax={"a.py": syntax})]) == names
    assert code.between([first, Code(modules={"b.py": file}, syntax={"b.py": syntax})]) == []


def test_only_modules_of_ours_and_the_users_are_recorded():
    kept = provenance.loaded_code({})
    assert HEALTH not in kept.modules or "trainer_ext.methods.health" in sys.modules
    assert kept.modules["launcher/run/code.py"] == code.hashes(ROOT / "launcher/run/code.py")[0]
    assert "tests/launcher/test_code.py" in kept.modules
    tops = {name.partition("/")[0] for name in kept.modules}
    assert not tops & {"pytest", "numpy", "json", "yaml", "os.py", "_pytest"}
    assert kept.libraries == code.versions() and {"torch", "verl"} <= set(kept.libraries)


def test_the_modules_of_a_backend_count_although_its_own_processes_load_them():
    module = "trainer_ext/backends/verl_ray/session.py"
    kept = provenance.loaded_code({"trainer": {"backend": "verl_ray"}})
    assert (kept.modules[module], kept.syntax[module]) == code.hashes(ROOT / module)
    assert module not in provenance.loaded_code({"trainer": {"backend": "in_process"}}).modules


def test_a_module_keeps_the_content_that_it_was_loaded_with(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine_of_test_code.py"
    path.write_text("RATE = 1\n")
    import mine_of_test_code  # type: ignore[import-not-found]

    provenance.note()
    first = code.hashes(path)[0]
    path.write_text("RATE = 2\n")
    assert provenance.loaded_code({}).modules[path.name] == first != code.hashes(path)[0]
    assert code.changes(Code(modules={path.name: first}, syntax={path.name: "x"}))  # found where Python would find it
    assert mine_of_test_code.RATE == 1


# ---------------------------------------------------------------- data


def configured(**task):
    """A configuration with this section `task`, and a model in the folder model."""
    model = {"name": "model", "kind": "pretrained", "path": "model", "resources": {"cpus": 1}}
    return {"seed": 0, "method": {}, "model": model, "task": {"name": "file", **task}, "trainer": {}, "verl": {}}


def identified(config):
    return identity.identity("base", content.settled(config))


def test_words_that_name_no_file_are_no_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("file", "question", "a.txt"):
        (tmp_path / name).write_text("")
    texts = {"path": "openai/gsm8k", "long": "x" * 5000, "null": "a\0b", "user": "~nobody9/x", "column": "question"}
    words = configured(**texts, root="/", here="./")
    assert content.settled(words) == words
    assert list(content.settled(configured(deep={"paths": ["a.txt", "b.txt", 3]}))["inputs"]) == [f"{tmp_path}/a.txt"]


def test_a_program_that_pip_has_installed_does_not_count_with_the_libraries_beside_it(tmp_path):
    for folder, beside in (("project", ["helper.py"]), ("site-packages", [])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("import helper")
        (tmp_path / folder / "helper.py").touch()
        _, *found = content.with_imports(tmp_path / folder / "train.py")
        assert [path.name for path in found] == beside


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of the user's with a model, data and a reward that imports a module beside it; the working folder."""
    folder = tmp_path / "mine"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights.safetensors").write_bytes(b"w" * 100)
    (folder / "x.jsonl").write_text("{}\n")
    (folder / "rewards.py").write_text(
        "from trainer_ext import tasks\nfrom beside import ONE\n\ndef f(*_): return ONE\n"
    )
    (folder / "beside.py").write_text("ONE = 1\n")
    monkeypatch.chdir(folder)
    return folder


MINE = {"train_path": "x.jsonl", "reward": "rewards.py:f"}


def test_content_counts_and_the_spelling_of_a_path_does_not(project):
    first = identified(configured(**MINE))
    moved = project.with_name("elsewhere")
    shutil.copytree(project, moved)
    (project / "linked").symlink_to(moved)
    for place in ("./", f"{project}/", f"{moved}/", "../elsewhere/", "linked/"):
        config = configured(train_path=f"{place}x.jsonl", reward=f"{place}rewards.py:f")
        config["model"]["path"] = f"{place}model/"
        assert identified(config) == first, place
        paths = [*content.settled(config)["inputs"], content.settled(config)["model"]["path"]]
        assert all(os.path.isabs(path) for path in paths)
    assert identified(configured(**MINE | {"reward": "rewards.py:g"})) != first
    shutil.copy("rewards.py", "renamed.py")
    assert identified(configured(**MINE | {"reward": "renamed.py:f"})) == first


@pytest.mark.parametrize("name", ["model/weights.safetensors", "model/more.json", "x.jsonl", "rewards.py", "beside.py"])
def test_other_content_is_another_run_and_a_worker_refuses_it(project, name):
    first = content.settled(configured(**MINE))
    content.check(first)
    (project / "model" / "README.md").write_text("about it")
    assert identified(configured(**MINE)) == identity.identity("base", first)
    (project / name).write_bytes(b"w" * 101)
    assert identified(configured(**MINE)) != identity.identity("base", first)
    with pytest.raises(ValueError, match="other content than when the run was planned"):
        content.check(first)


def test_a_large_file_is_read_again_only_if_it_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = tmp_path / "weights"
    weights.write_bytes(b"x" * files._LARGE)
    first = content_digest(weights)
    assert not (tmp_path / "cache").exists()  # it was written a moment ago
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    files._content_digest.cache_clear()
    assert content_digest(weights) == first
    (kept,) = (tmp_path / "cache" / "rlsweep" / "digests").iterdir()
    kept.write_text("0" * 16)  # so that it shows who is asked
    files._content_digest.cache_clear()
    assert content_digest(weights) == "0" * 16
    times = weights.stat()
    with open(weights, "r+b") as file:
        file.write(b"y")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert content_digest(weights) not in (first, "0" * 16)


def test_a_run_whose_files_have_moved_is_frozen_again_and_old_runs_keep_their_formula(project):
    words = (*ADHOC, f"multirun={project / 'm'}")
    (project / "x.jsonl").write_text('{"question": "1", "answer": "#### 1"}\n')
    planned = make(*words, "task.train_path=./x.jsonl")
    freeze.freeze(planned)
    (project / "x.jsonl").rename(project / "y.jsonl")
    with pytest.raises(ValueError, match="is gone"):
        content.check(read_config(run_folder(planned.multirun, *planned.runs)))
    again = make(*words, f"task.train_path={project}/y.jsonl")
    assert list(again.runs) == list(planned.runs)
    freeze.freeze(again)
    frozen = read_config(run_folder(planned.multirun, *planned.runs))
    assert list(frozen["inputs"]) == [f"{project}/y.jsonl"] and "data" not in frozen
    identity.verify(frozen, *planned.runs)
    content.check(frozen)
    old = {**configured(train_path="y.jsonl"), "data": {"y.jsonl": content_digest(project / "y.jsonl")}}
    assert identity.science(old)["data"] == old["data"] and identity.science(old)["task"]["train_path"] == "y.jsonl"
    content.check(old)
    assert content.unrecorded(old) == [f"{project}/model"]


def test_measured_times_are_found_under_another_spelling(project):
    one, other = configured(**MINE), configured(**{key: f"../mine/{path}" for key, path in MINE.items()})
    assert Application().kinds(content.settled(one)) == Application().kinds(content.settled(other))
    assert Application().kinds(content.settled(one))[0] != Application().kinds(one)[0]


def limits(experiment):
    """The limits of the answer of an experiment's report."""
    sweep = read_sweep(experiment)
    asked = settings(sweep.plan["analysis"], "plan.json", sweep.groups, sweep.baseline)
    return answer(study(sweep, asked)).limits


def test_a_report_says_that_an_older_version_did_not_record_the_content_of_a_model(project):
    data = project / "x.jsonl"
    data.write_text('{"question": "1", "answer": "#### 1"}\n')
    words = [*ADHOC, f"task.train_path={data}", *NO_GPU, f"multirun={project}/m"]
    planned = make(*words)
    freeze.freeze(planned)
    (run_id,) = planned.runs
    folder = run_folder(planned.multirun, run_id)
    write_state(folder, State(run_id, RunState.DONE))
    frozen = read_config(folder)
    del frozen["inputs"]
    (folder / "config.yaml").write_text(files.dump_yaml(frozen))
    plan_file = planned.multirun / "adhoc" / "plan.json"
    plan_file.write_text(plan_file.read_text().replace(run_id, "a" * 16))
    folder.rename(folder.with_name("a" * 16))
    said = f"1 run done by an older version, which did not record the content of {data}"
    (folder.with_name("a" * 16) / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(9)))
    assert any(line.startswith(said) for line in limits(planned.multirun / "adhoc"))


WHOLE = ("config.json", "tokenizer.json", "model.safetensors")


def test_a_model_of_the_hub_is_pinned_to_its_commit_and_another_commit_is_other_code(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def hub_cache(commit, *names):
        """Put a model into the hub's cache at a commit."""
        snapshot, head = (tmp_path / "hub/models--org--mine" / name for name in (f"snapshots/{commit}", "refs/main"))
        for folder in (snapshot, head.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (snapshot / name).write_text("{}")
        head.write_text(commit)
        return snapshot

    config = configured()
    config["model"]["path"] = "org/mine"
    folder = run_folder(tmp_path / "m", "a")
    fresh = State("a", RunState.PLANNED)
    assert provenance.hub_commits(config, fresh.code_ids(), folder) == {} and hub.pinned(config, {}) == config
    first = hub_cache("c1" * 20, "config.json")
    used = provenance.hub_commits(config, fresh.code_ids(), folder)
    assert used == {"models/org/mine": "c1" * 20}
    assert hub.pinned(config, used) == config  # transformers downloads the rest
    hub_cache("c1" * 20, *WHOLE)
    assert hub.pinned(config, used)["model"]["path"] == str(first)
    made = State("a", RunState.DONE, code={"1": code.keep(tmp_path / "m", provenance.loaded_code(config, used))})
    hub_cache("d2" * 20, *WHOLE)
    assert hub.pinned(config, provenance.hub_commits(config, made.code_ids(), folder))["model"]["path"] == str(first)
    changed = code.changes(code.read(tmp_path / "m", made.code["1"]))
    assert changed["models/org/mine"] == ("c1" * 20, "d2" * 20)
    assert code.said("models/org/mine", changed["models/org/mine"]) == "models/org/mine c1c1c1c1c1c1 is d2d2d2d2d2d2"
    later = provenance.hub_commits(config, fresh.code_ids(), folder)
    records = [provenance.loaded_code(config, commits) for commits in (used, later)]
    assert code.between(records) == ["models/org/mine"]
    (first / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=f"hf download org/mine --revision {'c1' * 20}"):
        hub.pinned(config, used)


# ---------------------------------------------------------------- what a launch does


WORDS = ("method=c0_grpo", "experiment.name=adhoc", "seed=0,1,2", "trainer.steps=4")


@pytest.fixture
def half_done(tmp_path):
    """A frozen plan of three runs, of which two are done by other code; the ids of these."""
    planned = make(*WORDS, f"multirun={tmp_path}")
    freeze.freeze(planned)
    done = list(planned.runs)[:2]
    other = record(tmp_path, **{HEALTH: "0" * 16})
    for run_id in done:
        write_state(run_folder(tmp_path, run_id), State(run_id, RunState.DONE, attempt=1, code={"1": other}))
    return tmp_path, done


def plan_of(multirun, *more):
    return make(*WORDS, *more, f"multirun={multirun}")


def other_code(plan):
    return checks.other_code(plan, lifecycle.find_states(plan.multirun, plan.runs))


def decide(plan):
    return checks.decide(plan, lifecycle.find_states(plan.multirun, plan.runs))


def test_runs_are_not_added_to_runs_of_other_code_until_the_user_chooses(half_done, capsys, worded):
    multirun, done = half_done
    worded(refusal(lambda: decide(plan_of(multirun))))
    assert other_code(plan_of(multirun, "rerun=changed"))["adhoc"][0].runs == tuple(done)
    accepting = plan_of(multirun, "accept_code=true")
    others = decide(accepting)
    assert read_state(run_folder(multirun, done[0])).state == RunState.DONE  # nothing was written until here
    checks.carry_out(accepting, others)
    (choice,) = code.choices(multirun / "adhoc")
    assert choice["runs"] == done and list(choice["changes"]) == [HEALTH]
    assert f"accepted as difference {choice['difference']}" in capsys.readouterr().out
    assert decide(plan_of(multirun)) == {}  # accepted once and for all
    # Another difference is another question.
    again = record(multirun, **{HEALTH: "1" * 16})
    write_state(run_folder(multirun, done[0]), State(done[0], RunState.DONE, attempt=1, code={"1": again}))
    with pytest.raises(InvalidPlan, match="1 done by other code"):
        decide(plan_of(multirun))


def test_nothing_is_refused_where_nothing_is_to_run_or_nothing_was_recorded(half_done):
    multirun, done = half_done
    (waiting,) = set(plan_of(multirun).runs) - set(done)
    write_state(run_folder(multirun, waiting), State(waiting, RunState.DONE))
    assert decide(plan_of(multirun)) == {}
    write_state(run_folder(multirun, waiting), State(waiting, RunState.PLANNED))
    for run_id in done:  # as an older version left them
        write_state(run_folder(multirun, run_id), State(run_id, RunState.DONE))
    assert decide(plan_of(multirun)) == {}


def test_a_run_that_would_be_resumed_by_other_code_counts_if_it_has_a_checkpoint(half_done):
    multirun, done = half_done
    other = read_state(run_folder(multirun, done[0])).code
    for run_id in done:
        write_state(run_folder(multirun, run_id), State(run_id, RunState.PREEMPTED, attempt=1, code=other))
    assert other_code(plan_of(multirun)) == {}
    make_checkpoint(run_folder(multirun, done[0]), 2)
    with pytest.raises(InvalidPlan, match="1 with a checkpoint by other code"):
        decide(plan_of(multirun))


def test_an_attempt_from_the_beginning_forgets_the_code_of_earlier_ones():
    owner = Claim("h", 1, 1, "b", "t", 2)
    state = State("a", RunState.PREEMPTED, attempt=1, code={"1": "x"})
    assert started(state, owner, None, 4).code == {"1": "x"}
    assert started(state, owner, None, 0).code == {}


def test_an_archived_run_loses_nothing_and_is_planned_anew(half_done, capsys):
    multirun, done = half_done
    folder = run_folder(multirun, done[0])
    (folder / "metrics.jsonl").write_text("line\n")
    planned = plan_of(multirun, "rerun=changed")
    checks.carry_out(planned, decide(planned))
    assert f"2 runs archived in {multirun / 'archive'}, and planned anew" in capsys.readouterr().out
    assert (multirun / "archive" / f"{done[0]}.1" / "metrics.jsonl").read_text() == "line\n"
    assert set(freeze.missing(planned)) == set(planned.runs)
    freeze.freeze(planned)
    assert read_state(folder).state == RunState.PLANNED
    assert lifecycle.archive(multirun, done[0]) == multirun / "archive" / f"{done[0]}.2"
    assert lifecycle.archive(multirun, done[0]) is None


def test_a_run_whose_state_was_lost_is_archived_and_planned_anew(half_done, capsys):
    multirun, (lost, *_) = half_done
    folder = run_folder(multirun, lost)
    (folder / "attempts").mkdir()
    (folder / "state.json").unlink()
    checks.carry_out(plan_of(multirun), {})
    aside = multirun / "archive" / f"{lost}.1"
    said = f"{lost}: its state.json was lost, so it is run anew\n1 run archived in {aside.parent}, and planned anew\n"
    assert capsys.readouterr().out == said and (aside / "attempts").exists() and not folder.exists()


def test_a_run_that_a_process_owns_is_not_archived(half_done):
    multirun, done = half_done
    folder = run_folder(multirun, done[0])
    with lifecycle.locked(folder):
        assert lifecycle.acquire(folder, 1) is not None
    assert lifecycle.archive(multirun, done[0]) is None and find_state(folder) is not None


def test_the_choice_is_not_part_of_the_command_that_retry_repeats(tmp_path):
    with_choice, without = (plan_of(tmp_path, *more) for more in (["accept_code=true"], []))
    assert with_choice.experiments == without.experiments and with_choice.runs == without.runs


def test_plan_names_the_files_and_the_choice(half_done, said, worded):
    multirun, done = half_done
    plan = f"plan {' '.join(WORDS)} multirun={multirun}"
    worded(line for line in said(plan).splitlines() if "code" in line)
    document = json.loads(said(f"{plan} rerun=changed --json"))
    assert (document["done"], document["new"]) == (0, 2)
    (other,) = document["experiments"]["adhoc"]["other_code"]
    assert (other["runs"], other["accepted"], list(other["changes"])) == (done, False, [HEALTH])


def test_a_reward_from_a_file_is_part_of_the_code_and_its_change_is_noticed(tmp_path):
    file = tmp_path / "rewards.py"
    helper = tmp_path / "beside_the_rewards.py"
    helper.write_text("VALUE = 1.0\n")
    file.write_text("from beside_the_rewards import VALUE\n\ndef good(*_):\n    return VALUE\n")
    rewards.function(f"{file}:good")
    kept = provenance.loaded_code({})
    assert {str(file), str(helper)} <= kept.modules.keys()
    only = code.Code(modules={str(file): kept.modules[str(file)]}, syntax={str(file): kept.syntax[str(file)]})
    assert code.changes(only) == {}
    file.write_text("def good(*_):\n    return 2.0\n")
    assert list(code.changes(only)) == [str(file)]


def test_a_report_knows_which_seeds_were_made_by_which_code(tmp_path, worded):
    one, two = record(tmp_path), record(tmp_path, **{HEALTH: "0" * 16})
    for number, (run_id, code_id) in enumerate({"a0": one, "a1": one, "a2": two, "b0": one, "b1": None}.items()):
        own = {"1": code_id} if code_id else {}
        make_run(tmp_path, run_id, RunState.DONE, finished=float(number), code=own)
    groups = {group: {"label": group, "method": "c0_grpo"} for group in "AB"}
    make_plan(tmp_path, "study", {"A": ["a0", "a1", "a2"], "B": ["b0", "b1"]}, groups=groups, baseline="A")
    mixed = mixed_code(read_sweep(tmp_path / "study"))
    assert mixed is not None and mixed.names == (HEALTH,)
    assert [[run.id for run in runs] for runs in mixed.versions] == [["a0", "a1", "b0"], ["a2"]]
    assert (mixed.accepted, mixed.unknown) == (None, 1)
    worded(limits(tmp_path / "study")[0])
    choice = {"time": 5.0, "difference": "d", "changes": {HEALTH: ["", ""]}, "codes": [two]}
    (tmp_path / "study" / code.CHOICES).write_text(json.dumps(choice) + "\n")
    again = mixed_code(read_sweep(tmp_path / "study"))
    assert again is not None and again.accepted == 5.0
    make_plan(tmp_path, "same", {"A": ["a0", "a1"], "B": ["b0", "b1"]}, groups=groups, baseline="A")
    assert mixed_code(read_sweep(tmp_path / "same")) is None
