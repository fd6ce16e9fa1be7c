"""What users type: names that are wrong or hostile; --json and exit codes; completion; quick answers; both programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher import __main__ as program
from launcher.commands import sweeper
from launcher.errors import Usage
from launcher.run import catalog
from launcher.run.folder import run_folder
from launcher.run.lifecycle import RunState, read_state
from tests.launcher.conftest import ROOT
from tests.launcher.experiments import rows
from tests.launcher.made import make_plan, make_run

HOSTILE = [
    "../runs", "..", ".", "/", "runs/aa11", "aa11/../aa22", "*", "a*", "?a11", "[a]*", "{aa11,aa22}", "$(touch hacked)",
    "`touch hacked`", "; touch hacked", "aa11 ", " aa11", "aa11\n", '"aa11"', "'aa11'", "study\x00", "", "~", "\ud800",
]  # fmt: skip


@pytest.fixture(scope="module")
def multirun(tmp_path_factory):
    place = tmp_path_factory.mktemp("words") / "multirun"
    for run_id in ("aa11", "aa22", "bb33"):
        make_run(place, run_id, RunState.DONE)
    make_plan(place, "study", {"A": ["aa11", "aa22", "bb33"]})
    make_plan(place, "study of $(things) 'and' more", {"A": ["aa11"]})
    return place


def call(multirun, capsys, *words):
    code = program.main([*words, "--multirun", str(multirun)])
    return code, *capsys.readouterr()


def snapshot(multirun):
    paths = (path for path in multirun.parent.rglob("*") if path.name not in (".lock", ".index"))
    return {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
@pytest.mark.parametrize("command", ["logs", "status", "runs", "cancel", "resume", "rerun", "verify", "sync"])
def test_a_word_that_is_no_name_is_refused_and_touches_nothing(multirun, capsys, command, word):
    before = snapshot(multirun)
    code = program.main([command, "--multirun", str(multirun), "--", word])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.startswith("error: ") and len(err.splitlines()) == 1
    assert snapshot(multirun) == before


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=st.text() | st.text(alphabet="a1.*/[]?"))
def test_a_word_finds_a_run_only_by_its_literal_beginning(multirun, word):
    beginning = [one for one in ("aa11", "aa22", "bb33") if word and one.startswith(word)]
    if len(beginning) == 1:
        assert catalog.find_run(multirun, word).name == beginning[0]
    else:
        with pytest.raises(Usage):
            catalog.find_run(multirun, word)


def test_an_experiment_with_an_odd_name_is_shown_and_its_command_quoted(multirun, capsys):
    name = "study of $(things) 'and' more"
    code, out, _ = call(multirun, capsys, "status", name)
    assert code == 0 and out.startswith(f"{name}: 1 run of")
    assert catalog.command(multirun, "logs", name).split(" --multirun")[0] == (
        "python -m launcher logs 'study of $(things) '\"'\"'and'\"'\"' more'"
    )


MISTAKES = """
status studdy
verify bb34
verify study
status bnto_grid
logs aa
resume study aa99
export aa11 model
"""


def test_a_mistake_is_answered_with_what_was_meant(multirun, capsys, worded):
    for words in rows(MISTAKES):
        code, out, err = call(multirun, capsys, *words.split())
        assert (code, out) == (2, "")
        worded(err.replace(str(multirun), "{multirun}"))


def test_commands_are_printed_as_the_present_project_types_them(tmp_path, capsys, monkeypatch):
    for name in (
        "rlsweep.toml",
        "conf/experiment/first.yaml",
        "conf/experiment/other.yaml",
        "multirun/first/plan.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    command = "rlsweep launch experiment="
    with pytest.raises(Usage, match=f"Fix: repeat its command, {command}first, which writes it again"):
        catalog.read_plan(tmp_path / "multirun", "first")
    with pytest.raises(Usage, match=f"Fix: {command}other writes the plan and runs it"):
        catalog.named(tmp_path / "multirun", "other")
    assert sweeper.run([]) == 2
    said = capsys.readouterr().err
    assert f"{command}NAME" in said and "rlsweep plan experiment=NAME" in said and "python" not in said


@pytest.mark.parametrize("command", ["logs", "cancel", "resume", "verify"])
def test_a_folder_whose_launch_was_cut_short_is_named(tmp_path, capsys, command):
    (tmp_path / "runs/cc33").mkdir(parents=True)
    make_plan(tmp_path, "study", {"A": ["cc33"]})
    code, out, err = call(tmp_path, capsys, command, "cc3")
    assert (code, out) == (2, "") and f"{tmp_path}/runs/cc33: no state.json" in err
    assert call(tmp_path, capsys, "cancel", "study") == (0, "0 runs: no run has a folder yet\n", "")


def test_a_run_that_no_plan_names_cannot_be_run_again(multirun, capsys, tmp_path):
    make_run(tmp_path, "dd44", RunState.FAILED)
    code, _, err = call(tmp_path, capsys, "resume", "dd44")
    assert code == 2 and "no plan" in err and read_state(run_folder(tmp_path, "dd44")).state == RunState.FAILED


def test_every_command_has_json_and_says_its_exit_codes(capsys):
    for name in program.all_commands():
        with pytest.raises(SystemExit) as end:
            program.main([name, "--help"])
        text = capsys.readouterr().out
        assert end.value.code == 0 and "--json" in text and "xit code" in text, name


def process(*words, cwd=ROOT):
    return subprocess.run([sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True)


LIGHT = """
import sys
from launcher.__main__ import main
for words in ("status study", "logs aa11", "gc", "cancel aa11"):
    assert main([*words.split(), "--json", "--multirun", sys.argv[1]]) == 0, words
assert main(["completion", "bash"]) == 0
print()
print(*sys.modules)
"""


def test_commands_that_only_look_load_no_heavy_library(multirun):
    done = process("-c", LIGHT, multirun)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert "launcher" in loaded
    assert not loaded & {"hydra", "omegaconf", "torch", "verl", "pandas", "numpy", "wandb", "rich", "pydantic"}


# ---------------------------------------------------------------- completion


def completed(multirun, tmp_path, line):
    """What bash would offer after this line, from the real script and a real bash."""
    program_file = tmp_path / "bin" / "rlsweep"
    program_file.parent.mkdir(exist_ok=True)
    program_file.write_text(f'#!/bin/sh\ncd {ROOT}\nexec {sys.executable} -m launcher "$@"\n')
    program_file.chmod(0o755)
    script = 'eval "$(rlsweep completion bash)"; COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9; '
    script += "COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _python_argcomplete rlsweep; "
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    path = f"{program_file.parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script, "bash", line], capture_output=True, text=True, env={"PATH": path})
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.bash
def test_bash_completes_commands_experiments_and_runs(multirun, tmp_path):
    assert completed(multirun, tmp_path, "rlsweep st") == ["status"]
    at = f"--multirun {multirun}"
    assert completed(multirun, tmp_path, f"rlsweep logs {at} aa") == ["aa11", "aa22"]
    assert completed(multirun, tmp_path, f"rlsweep logs {at} bb") == ["bb33"]
    assert "study" in completed(multirun, tmp_path, f"rlsweep resume {at} stu")
    # To bash, what follows the equals sign is a word of its own.
    assert completed(multirun, tmp_path, "rlsweep plan experiment=quick") == ["quickstart"]
    assert completed(multirun, tmp_path, "rlsweep completion f") == ["fish"]
    assert completed(multirun, tmp_path, "rlsweep launch experiment=quick") == ["quickstart"]
    assert {"method", "method."} <= {*completed(multirun, tmp_path, "rlsweep launch met")}
    chosen = "rlsweep launch experiment=quickstart seed=0,1 trainer.eval_e"
    assert completed(multirun, tmp_path, chosen) == ["trainer.eval_every="]
    assert completed(multirun, tmp_path, "rlsweep rep") == ["report"]
    assert completed(multirun, tmp_path, "rlsweep report --form") == ["--format"]
    assert completed(multirun, tmp_path, "rlsweep import --fac") == ["--factor"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(capsys, shell):
    assert program.main(["completion", shell]) == 0
    assert "rlsweep" in capsys.readouterr().out
    assert program.main(["completion", shell, "--json"]) == 0 and json.loads(capsys.readouterr().out)


TORN, NEWER, NO_OBJECT, FOLDER = '{"format": 1, "id"', '{"format": 2}', "[]", None
OTHER_TYPES = '{"format": 1, "id": "aa11", "state": "running", "attempt": 1, "finished": "yesterday", "cause": 5}'


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(("runs/aa11/state.json", content) for content in (TORN, NEWER, "", NO_OBJECT, FOLDER, OTHER_TYPES)),
        *(("runs/aa11/config.yaml", content) for content in (TORN, NEWER, NO_OBJECT, FOLDER)),
        *(("runs/aa11/claim.json", content) for content in (TORN, NEWER, "", NO_OBJECT)),
        ("study/plan.json", TORN),
        ("bases/b0.yaml", FOLDER),
    ],
)
def test_a_spoiled_file_ends_a_command_with_its_name_and_no_traceback(file, content, tmp_path, capsys):
    for run_id, state in (("aa11", RunState.RUNNING), ("aa22", RunState.DONE)):
        make_run(tmp_path, run_id, state)
    make_plan(tmp_path, "study", {"A": ["aa11", "aa22"]})
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).unlink(missing_ok=True)
    if content is FOLDER:
        (tmp_path / file).mkdir()
    else:
        (tmp_path / file).write_text(content)
    of_run = ("logs aa11", "verify aa11", "sync aa11")
    for words in ("status", "logs study", "gc", *of_run, "cancel study"):
        code, _, err = call(tmp_path, capsys, *words.split())
        assert code in (0, 1, 2)
        assert code == 0 or not err or (len(err.splitlines()) == 1 and str(tmp_path) in err)


def test_a_refused_sweep_exits_with_2_says_everything_and_writes_nothing(tmp_path):
    multirun = tmp_path / "multirun"
    bad = ("quickstart", "experiment=quickstart", "method=nosuch", "method.gamma=x", f"multirun={multirun}")
    done = process(ROOT / "launch.py", "-m", *bad, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    bare, first, second, last = done.stderr.splitlines()
    assert "Fix: write experiment=quickstart" in bare
    assert "method = nosuch" in first and "method.gamma = x" in second
    assert last == "invalid plan: 3 problems; nothing was written or run"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--help"], 0, "experiment: bnto_grid"),
        (["-m", "--cfg", "job", "experiment=quickstart"], 0, "name: quickstart"),
        (["-m", "hydra/launcher=nosuch"], 2, ""),
    ],
)
def test_hydras_own_command_line(arguments, code, output):
    done = process("launch.py", *arguments)
    assert done.returncode == code and output in done.stdout


@pytest.mark.parametrize("words", [["launch.py", "-m", "experiment=quickstart"], ["-m", "launcher", "status"]])
def test_another_python_than_the_installed_one_is_told_what_to_do(words):
    done = process("-S", *words)  # without any package, as a Python outside .venv
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: hydra is not installed for ") and "source .venv/bin/activate" in done.stderr
