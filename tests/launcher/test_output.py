"""Output that cannot be written is dropped: a closed one, a full disk, and a reader that has ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.run.folder import runs_folder
from launcher.run.lifecycle import RunState, read_state
from tests.launcher.made import make_plan, make_run

ROOT = Path(__file__).parents[2]
LOST = [">&-", ">/dev/full", "| head -1 >/dev/null", ">&- 2>&-", ">/dev/full 2>&1", "<&- >&-"]


def in_shell(command: str, output: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python with that output, and with the program's own exit code in a pipe, too."""
    redirected, pipe = ("", output) if output.startswith("|") else (output, "")
    with tempfile.NamedTemporaryFile("r") as code:
        # `sh` has no pipefail.
        done = subprocess.run(
            ["sh", "-c", f"{{ {sys.executable} {command} {redirected}; echo $? > {code.name}; }} {pipe}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        done.returncode = int(code.read())
    return done


@pytest.fixture(scope="module")
def multirun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    for number in range(3):
        make_run(folder, f"{number:016x}", RunState.DONE, steps=2)
    make_plan(folder, "study", {"A": [f"{number:016x}" for number in range(3)]})
    return folder


@pytest.mark.parametrize("output", LOST)
@pytest.mark.parametrize(
    "command",
    [
        "-m launcher --help",
        "-m launcher status study --multirun {}",
        "-m launcher runs --json --multirun {}",
        "-m launcher plan method=c0_grpo seed=0 multirun={}",
        "-m analysis --help",
        "launch.py --cfg job method=c0_grpo",
    ],
)
def test_a_command_ends_as_if_its_output_were_read(command: str, output: str, multirun: Path) -> None:
    done = in_shell(command.format(multirun), output)
    lost = "--json" in command and output.startswith(">/dev/full")  # a program that reads it must know
    assert done.returncode == lost and "Traceback" not in done.stderr and str(multirun) not in done.stderr, done.stderr
    told = done.stderr == "standard output cannot be written (No space left on device); it is dropped\n"
    assert told if output == ">/dev/full" else done.stderr == "", done.stderr


@pytest.mark.parametrize("output", LOST)
def test_a_usage_error_keeps_its_exit_code(output: str, multirun: Path) -> None:
    assert in_shell(f"-m launcher status none --multirun {multirun}", output).returncode == 2


def test_an_output_that_can_be_written_is_as_before(multirun: Path) -> None:
    code = """
import sys
import tempfile
from launcher.project import drop_what_cannot_be_written
drop_what_cannot_be_written()
print("é", end=""); sys.stdout.write("1\\n")
sys.stdout.flush(); sys.stdout.buffer.write(b"2\\n"); print("3", file=sys.stderr)
import subprocess
sys.stdout.flush(); subprocess.run(["echo", "4"]); print(sys.stdout.encoding, sys.stdout.isatty())
"""
    for options in ([], ["-u"]):
        done = subprocess.run([sys.executable, *options, "-c", code], cwd=ROOT, capture_output=True, check=True)
        assert done.stdout.decode() == "é1\n2\n4\nutf-8 False\n" and done.stderr == b"3\n"


@pytest.mark.train
@pytest.mark.processes
@pytest.mark.parametrize("output", LOST)
def test_a_sweep_goes_on_and_reports_without_an_output(output: str, tmp_path: Path) -> None:
    words = "method=c0_grpo seed=0,1 trainer.steps=2 task.warm_start.steps=2 cluster.slots=1"
    done = in_shell(f"launch.py -m {words} multirun={tmp_path}", output)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "multirun" not in done.stderr, done.stderr
    assert [read_state(folder).state for folder in runs_folder(tmp_path).iterdir()] == [RunState.DONE] * 2
    assert len(list(tmp_path.glob("*/report/index.html"))) == 1
