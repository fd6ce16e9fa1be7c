"""A plan calls code of its user in a process of its own: whatever way that ends, the plan names the file and line."""

from __future__ import annotations

import json
import os
import time

import pytest

from launcher.__main__ import main
from launcher.application.isolated import Ended, Isolated
from tests.launcher.experiments import make, refused

TASK = """
import ctypes, os, sys, threading, time
from trainer_ext.scoring.tasks import Row, task

{at_import}

@task("mine")
def rows(section):
    {in_rows}
    return [Row(str(number) + ">", "1") for number in range(200)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    {in_reward}
    return 1.0

def demonstration(row, generator, random_fraction):
    return row.ground_truth
"""
PLACES = {"at_import": 5, "in_rows": 9, "in_reward": 13}
ENDINGS = ["sys.exit(0)", "os._exit(0)", "ctypes.string_at(0)", "raise KeyboardInterrupt"]


@pytest.fixture
def mine(new_tasks, conf):
    """mine(in_reward=...) -> the folder of configurations with this task."""
    shipped = (conf / "task/sorting.yaml").read_text()
    (conf / "task/mine.yaml").write_text(shipped.replace("name: sorting", "name: mine"))

    def write(**code: str):
        (new_tasks / "mine.py").write_text(TASK.format(**{place: code.get(place, "pass") for place in PLACES}))
        return conf

    return write


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", ENDINGS)
def test_code_that_ends_the_process_is_refused_with_its_file_and_line(mine, place, code, worded):
    (line,) = refused("task=mine", conf=mine(**{place: code}))
    worded(line)


def test_a_process_that_is_killed_is_refused_with_what_chose_the_code(mine, worded):
    (line,) = refused("task=mine", conf=mine(in_reward="os.kill(os.getpid(), 9)"))
    worded(line)


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 10)",
        "os.write(1, b'raw')",
        "threading.Thread(target=time.sleep, args=(10000,)).start()",
        "sys.stdin.read()",
        "os.fork() or os._exit(0)",
        "os.chdir('/')",
        "sys.exit = os._exit = None",
    ],
)
def test_what_code_does_to_its_own_process_does_not_reach_the_plan(mine, capfd, code):
    assert make("task=mine", conf=mine(at_import=code, in_reward=code)).runs
    assert capfd.readouterr().out == "" and os.getcwd() != "/"


def _endless(_: int) -> None:
    while True:
        time.sleep(0.01)


def test_code_that_does_not_end_has_a_limit_and_the_next_call_is_answered():
    child = Isolated()
    with pytest.raises(Ended) as ended:
        child.call(0.2, _endless, 1)
    assert ended.value.what == "it gave no answer within 0.2 s" and ended.value.late
    assert ended.value.file == __file__ and ended.value.line
    assert child.call(60.0, abs, -3) == 3
    child.close()


def test_the_command_prints_json_alone_and_says_what_ended_the_code(tmp_path, capfd):
    lines = [f'{{"prompt": "{number}", "answer": "b"}}\n' for number in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    words = ["method=c0_ppo", "model=qwen2_5_0_5b", "model.resources.devices=0", "task=file", f"multirun={tmp_path}"]
    words += [f"task.train_path={tmp_path}/data.jsonl", f"task.reward={tmp_path}/own.py:score"]
    for end, code, total in (("return 1.0", 0, 1), ("os._exit(0)", 2, None)):
        (tmp_path / "own.py").write_text(f"import os\n\ndef score(*_):\n    print('x')\n    {end}\n")
        assert main(["plan", *words, "--json"]) == code
        out, err = capfd.readouterr()
        assert (json.loads(out)["total"] if total else out or None) == total
        assert (f"{tmp_path}/own.py: line 5: " in err) == (total is None)


@pytest.mark.parametrize(
    ("train", "test", "reward"),
    [("ab", None, "import no_such_package"), ("", None, ""), ("s" * 9, None, ""), ("abc", "cab", "")],
)
def test_what_is_wrong_with_the_files_of_a_user_names_them(tmp_path, train, test, reward, worded):
    start = "{steps: 1, batch_size: 1, lr: 0.1, random_fraction: 0.0, seed: 0}"
    words = ["method=c0_ppo", "task=file", "task.worked_answer=answer", f"task.warm_start={start}"]
    of_verl = {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 64, "data.max_prompt_length": 8}
    words += [f"verl.{key}={value}" for key, value in {**of_verl, "data.max_response_length": 8}.items()]
    words.append(f"task.reward={tmp_path}/own.py:score")
    (tmp_path / "own.py").write_text(f"{reward}\ndef score(*_):\n    return 1.0\n")
    for name, prompts in {"train": train, "test": test}.items():
        if prompts is not None:
            lines = "".join(f'{{"prompt": "{prompt}", "answer": "1"}}\n' for prompt in prompts)
            (tmp_path / f"{name}.jsonl").write_text(lines)
            words.append(f"task.{name}_path={tmp_path}/{name}.jsonl")
    worded(refused(*words))
