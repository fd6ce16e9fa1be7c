"""The sandbox: right programs pass, wrong ones fail, and programs that attack it neither escape, nor stay, nor pass."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer_ext.adversaries import ATTACKS, FLOODS, FORGERIES
from trainer_ext import sandbox
from trainer_ext.sandbox import guest, kernel

pytestmark = pytest.mark.namespaces

LIMITS = sandbox.Limits("namespaces", seconds=5, memory_mb=256, processes=8, file_mb=4)
SHORT = sandbox.Limits("namespaces", seconds=0.5, memory_mb=256, processes=8, file_mb=4)
SQUARE = {"tests": ["assert square(3) == 9", "assert square(91738264) == 91738264 ** 2"], "entry_point": "square"}
RIGHT = "def square(x): return x * x"


def verdict(source, limits=LIMITS, **tests):
    return sandbox.run(limits, [source], tests or SQUARE)


@pytest.fixture(autouse=True)
def nothing_stays():
    """Ends the servers after each test: whatever else is left are processes of a program."""
    yield
    sandbox.close()
    deadline = time.monotonic() + 5
    while left := list(kernel.descendants(os.getpid())):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_cases_are_counted():
    assert verdict(RIGHT) == sandbox.Verdict(2, 2)
    assert verdict("def square(x): return 9") == sandbox.Verdict(1, 2)
    assert verdict("def square(x: return 9") == sandbox.Verdict(0, 2, syntax_error=True)


def test_the_first_program_that_is_python_counts():
    assert sandbox.run(LIMITS, ["def square(x: ", RIGHT, "def square(x): return 0"], SQUARE).right


def test_a_program_is_run_for_each_standard_input():
    stdio = [["2\n", "4\n"], ["3", "9  \n\n"], ["4", "17"], ["x", "1"]]
    source = "import sys\nif __name__ == '__main__':\n    n = int(input())\n    print(n * n)\n    exit()"
    assert verdict(source, stdio=stdio) == sandbox.Verdict(2, 4)
    assert verdict("print(float(input()) ** 2)", stdio=[["4", "16.0000001"], ["3", "9.1"]]).passed == 1
    assert verdict("print(open(0).read(), end='')", stdio=[["a\nb", "a\nb"]]).right
    assert verdict("print(1)\nraise ValueError", stdio=[["", "1"]]).passed == 0
    assert verdict("print('x' * (1 << 26))", stdio=[["", "1"]]).passed == 0


def test_functions_are_called_with_data_and_return_data():
    values = [None, True, -7, 10**5000, 0.1, float("inf"), "a\ud800\n", b"\0", 1j, [1, (2, [3])], {(1, 2): {3}}, set()]
    assert [guest.decode(guest.encode(value)) for value in values] == values
    assert [type(guest.decode(guest.encode(value))) for value in values] == list(map(type, values))
    assert guest.decode(guest.encode(object())) != guest.decode(guest.encode(object()))
    calls = [[[[1, 2]], [[2, 1]]], [[[]], []], [[[3]], 3]]
    source = "class Solution:\n    def turn(self, a):\n        return tuple(reversed(a))"
    assert verdict(source, calls=calls, entry_point="turn").passed == 2


def test_tests_see_what_a_program_defines_and_its_exceptions():
    source = "def safe(x):\n    if x < 0: raise ValueError('negative')\n    return x\nclass Own(Exception): pass\n"
    source += "def own(): raise Own('mine')\ndef abs(x): return 0\n"
    test = "try: safe(-1)\nexcept ValueError as error: assert str(error) == 'negative'\nelse: assert False"
    assert verdict(source, tests=["assert safe(2) == 2", test, "own()", "assert abs(-1) == 1"]).passed == 3


def test_a_case_that_takes_the_time_leaves_those_before_it():
    source = "import time\ndef square(x):\n    if x > 9: time.sleep(60)\n    return x * x"
    began = time.monotonic()
    assert verdict(source, SHORT) == sandbox.Verdict(1, 2, timed_out=True)
    assert time.monotonic() - began < 3
    assert verdict(RIGHT, SHORT).right  # the next program is tested as before


@pytest.mark.parametrize("tests", [{"tests": ["assert ("]}, {"tests": ["1"], "setup": "1 / 0"}, {"tests": []}])
def test_wrong_tests_are_no_verdict(tests):
    with pytest.raises(sandbox.BadTests):
        sandbox.run(LIMITS, [RIGHT], tests)


def test_a_program_that_cannot_even_start_has_no_verdict():
    with pytest.raises(sandbox.Unavailable, match=r"ended twice before they began, within .*memory_mb=1,"):
        verdict(RIGHT + "  #" + "x" * 10**7, replace(LIMITS, memory_mb=1))
    with pytest.raises(sandbox.BadTests, match="do not fit into memory_mb"):
        verdict(RIGHT, replace(LIMITS, memory_mb=64), tests=["assert square(3) == 9"] * 10**6)


def test_an_interrupted_server_is_not_used_again(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    verdict(RIGHT)
    pid, *_ = kernel.descendants(os.getpid())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sandbox._Server, "_answer", interrupted)
        verdict("while True: pass")
    assert pid not in kernel.descendants(os.getpid())
    assert verdict(RIGHT).right


def test_what_the_kernel_refuses_is_named():
    with pytest.raises(sandbox.Unavailable, match="mount on /tmp/rlsweep-no-such-folder: No such file"):
        sandbox._Server(sandbox.Limits("namespaces", 1, 256, 8, file_mb=4), folder="/tmp/rlsweep-no-such-folder")


def test_many_programs_run_at_the_same_time():
    from concurrent.futures import ThreadPoolExecutor

    sources = [RIGHT, "def square(x): return 0"] * 10
    with ThreadPoolExecutor(4) as threads:
        assert [one.passed for one in threads.map(verdict, sources)] == [2, 0] * 10


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_not_work(name, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    monkeypatch.setenv("RLSWEEP_SECRET", "secret")
    source = f"SECRET_FILE = {str(secret)!r}\n{ATTACKS[name]}"
    tests = {"tests": ["assert attack() is False"], "setup": "# assert 91738264", "entry_point": "attack"}
    for _ in range(2):  # the second program finds what the first has left
        assert sandbox.run(LIMITS, [source], tests) == sandbox.Verdict(1, 1)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_does_not_pass(name):
    assert verdict(FORGERIES[name]).passed == 0
    assert verdict(RIGHT).right


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_in_time(name):
    began = time.monotonic()
    assert verdict(FLOODS[name], SHORT).passed == 0
    assert time.monotonic() - began < 5
    assert verdict(RIGHT).right


@pytest.mark.parametrize("name", ["ends before the tests", "prints a verdict", "is equal to everything"])
def test_a_forgery_does_not_pass_without_namespaces(name):
    assert verdict(FORGERIES[name], replace(LIMITS, isolation="process")).passed == 0


@pytest.fixture
def written():
    """Removes the files that programs write to the machine's own /tmp, where nothing keeps them from it."""
    before = set(Path("/tmp").iterdir())
    yield
    for path in Path("/tmp").glob("[0-9]*"):
        if path not in before and path.stem.isdigit() and path.stat().st_uid != os.getuid():
            path.unlink()


@pytest.mark.parametrize("name", ["fork bomb", "zombies", "a daemon", "a daemon that ignores signals", "huge files"])
def test_a_flood_ends_in_time_without_namespaces(name, written):
    limits = replace(SHORT, isolation="process")
    began = time.monotonic()
    assert verdict(FLOODS[name], limits).passed == 0
    assert time.monotonic() - began < 5
    assert verdict(RIGHT, limits).right
    assert verdict("print(2 * int(input()))", limits, stdio=[["2", "4"]]).right
