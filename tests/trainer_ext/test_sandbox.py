"""The sandbox: right programs pass, wrong ones fail, and programs that attack it neither escape, nor stay, nor pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer_ext.adversaries import ATTACKS, FLOODS, FORGERIES
from trainer_ext.scoring import sandbox
from trainer_ext.scoring.sandbox import guest, kernel, server

pytestmark = pytest.mark.namespaces

LIMITS = sandbox.Limits("namespaces", seconds=5, memory_mb=256, processes=8, file_mb=4)
SHORT = replace(LIMITS, seconds=0.5)
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
    # the first program that is Python counts
    assert sandbox.run(LIMITS, ["def square(x: ", RIGHT, "def square(x): return 0"], SQUARE).right


def test_a_program_is_run_for_each_standard_input():
    stdio = [["2\n", "4\n"], ["3", "9  \n\n"], ["4", "17"], ["x", "1"]]
    source = "import sys\nif __name__ == '__main__':\n    n = int(input())\n    print(n * n)\n    exit()"
    assert verdict(source, stdio=stdio) == sandbox.Verdict(2, 4)
    assert verdict("print(float(input()) ** 2)", stdio=[["4", "16.0000001"], ["3", "9.1"]]).passed == 1
    assert verdict("print(open(0).read(), end='')", stdio=[["a\nb", "a\nb"]]).right
    assert verdict("print(1)\nraise ValueError", stdio=[["", "1"]]).passed == 0
    assert verdict("print('x' * (1 << 26))", stdio=[["", "1"]]).passed == 0


_WRITES = (
    "import os\nfor place in range(64):\n  try: place != 2 and os.write(place, b'P' * 1000)\n  except OSError: pass"
)
#: Ways in which a program that squares a number reads and writes.
WAYS = {
    "sys.stdout replaced": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(int(input()) ** 2)",
    "sys.stdout detached": """
import io, sys
sys.stdout = io.TextIOWrapper(sys.stdout.detach())
print(int(input()) ** 2)""",
    "sys.stdin replaced": "import io, sys\nsys.stdin = io.TextIOWrapper(sys.stdin.buffer)\nprint(int(input()) ** 2)",
    "sys.__stdout__": "import sys\nsys.__stdout__.write(str(int(sys.__stdin__.read()) ** 2))",
    "sys.stdout closed": "import sys\nprint(int(input()) ** 2)\nsys.stdout.close()",
    "a buffer of its own": """
import os, sys
class Out:
    text = ""
    def write(self, text): self.text += text
    def flush(self): self.text = self.text[os.write(1, self.text.encode()):]
sys.stdout = Out()
print(int(input()) ** 2)""",
    "at exit": """
import atexit, io, sys
sys.stdout = kept = io.StringIO()
atexit.register(lambda: sys.__stdout__.write(kept.getvalue()))
print(int(input()) ** 2)""",
    "a thread that is not joined": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print(int(input()) ** 2))).start()""",
    "an open file": "out = open(1, 'w')\nout.write(str(int(input()) ** 2))",
    "an object that ends": "class Last:\n    def __del__(self): print(int(input()) ** 2)\nlast = Last()",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(int(line) ** 2)",
    "names of its file": """
import os, sys
assert sys.argv == [os.path.basename(__file__)] and os.path.isabs(__file__)
print(int(input()) ** 2)""",
    "names of streams": "print(int(open('/dev/stdin').read()) ** 2, file=open('/dev/stdout', 'w'))\nopen('/dev/stdin')",
    "paths of streams": """
from pathlib import Path
Path("/dev/fd/1").write_text(str(int(Path("/dev/fd/0").read_text()) ** 2) + "\\n")
print()""",
    "lines": "import sys\nprint(*[int(line[:-1]) ** 2 for line in sys.stdin])",
}  # fmt: skip


@pytest.mark.parametrize("isolation", sandbox.ISOLATIONS)
def test_a_program_reads_and_writes_as_one_that_python_runs(isolation, tmp_path):
    for name, source in WAYS.items():
        (tmp_path / "program.py").write_text(source)
        bare = [sys.executable, "-X", "utf8", "program.py"]
        done = subprocess.run(bare, input="12\n", cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "144", name
        stdio = [["12\n", "144\n"], ["12\r\n", "144\n"], ["12\n", "145\n"]]
        assert verdict(source, replace(LIMITS, isolation=isolation), stdio=stdio).passed == 2, name
    imported = "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nassert sys.argv and __file__\n"
    assert verdict(imported + RIGHT, replace(LIMITS, isolation=isolation)).right


#: Programs whose output no test of a standard input may take for right, whatever they print before.
WRONG_ENDS = [
    "print(4)\nraise ValueError",
    "print(4, flush=True)\nimport sys\nsys.exit('no')",
    "import sys\nprint(4)\nsys.stdout.flush = None",
    "import os\nprint(4)\nos.kill(os.getpid(), 9)",
    _WRITES,
]


def test_a_program_that_does_not_end_well_is_wrong_whatever_it_printed():
    for source in WRONG_ENDS:
        assert verdict(source, stdio=[["2", "4"], ["2", "4"]]).passed == 0, source


def test_functions_are_called_with_data_and_return_data():
    values = [None, True, -7, 10**5000, 0.1, float("inf"), "a\ud800\n", b"\0", 1j, [1, (2, [3])], {(1, 2): {3}}, set()]
    assert [guest.decode(guest.encode(value)) for value in values] == values
    assert [type(guest.decode(guest.encode(value))) for value in values] == list(map(type, values))
    assert guest.decode(guest.encode(object())) != guest.decode(guest.encode(object()))
    calls = [[[[1, 2]], [2, 1]], [[[]], []], [[[3]], 3], [[[3]], [[3]]], [[[3]], 7, [3]]]
    source = "class Solution:\n    def turn(self, a):\n        return tuple(reversed(a))"
    assert verdict(source, calls=calls, entry_point="turn").passed == 3
    assert verdict("def f(x): return {1: x}", calls=[[[2], {"1": 2}], [[3], {"1": [3]}]], entry_point="f").passed == 1
    for value, same, others in (
        (1, [1, 1.0], [True]),
        ({"a": (True, 0)}, [{"a": [True, 0.0]}], [{"a": [1, 0]}, [True, 0]]),
    ):
        calls = [[[], one] for one in (*same, *others)]
        assert verdict(f"def f(): return {value}", calls=calls, entry_point="f").passed == len(same)


def test_tests_see_what_a_program_defines_and_its_exceptions():
    source = "def safe(x):\n    if x < 0: raise ValueError('negative')\n    return x\nclass Own(Exception): pass\n"
    source += "def own(): raise Own('mine')\ndef abs(x): return 0\n"
    test = "try: safe(-1)\nexcept ValueError as error: assert str(error) == 'negative'\nelse: assert False"
    assert verdict(source, tests=["assert safe(2) == 2", test, "own()", "assert abs(-1) == 1"]).passed == 3


#: Right programs, and their tests.
RIGHT_ANSWERS = {
    "a name with an underscore": ("def _f(x): return x + 1", "assert _f(1) == 2"),
    "the name of a builtin": ("def sum(xs): return 7", "assert sum([1]) == 7"),
    "a builtin and a helper": ("def max(x): return _double(x)\ndef _double(x): return 2 * x", "assert max(2) == 4"),
    "a byte order mark": ("\ufeffdef f(x): return x", "assert f(1) == 1"),
    "Windows' line ends and tabs": ("def f(x):\r\n\treturn x\r\n", "assert f(1) == 1"),
    "names that are not ASCII": ("def größe(x): return x", "assert größe(1) == 1"),
    "an exception of its own": (
        "class Wrong(ValueError): pass\ndef f(x): raise Wrong(x)",
        "try: f(1)\nexcept ValueError as error: assert str(error) == '1'\nelse: assert False",
    ),
    "an exception of an exception": (
        "class Wrong(KeyError): pass\nclass Worse(Wrong): pass\ndef f(x): raise Worse(x)",
        "try: f(1)\nexcept LookupError: pass\nelse: assert False",
    ),
    "an exception of a module": (
        "import json\ndef f(x): return json.loads(x)", "try: f('{')\nexcept ValueError: pass\nelse: assert False",
    ),
    "an exception of bytes": (
        "def f(x): return x.decode()", "try: f(b'\\xff')\nexcept ValueError: pass\nelse: assert False",
    ),
    "a coroutine": ("async def f(x): return x", "import asyncio\nassert asyncio.run(f(1)) == 1"),
    "a generator": ("def f(n):\n    yield from range(n)", "assert list(f(2)) == [0, 1] and next(f(1)) == 0"),
    "an iterator": ("def f(n): return map(str, range(n))", "assert ''.join(f(3)) == '012'"),
    "a range": ("def f(n): return range(n)", "assert list(f(2)) == [0, 1]"),
    "a view of a mapping": ("def f(n): return {n: 1}.keys()", "assert list(f(2)) == [2]"),
    "a deque": ("import collections\ndef f(n): return collections.deque([n])", "assert list(f(2)) == [2]"),
    "modules": ("import csv, unittest, unicodedata, sqlite3\ndef f(x): return x", "assert f(1) == 1"),
    "an expression": ("def f(x): return f'{x} * 8'", "assert eval(f(3)) == 24 and eval('1 + x', {'x': 1}) == 2"),
    "an expression that fails": ("def f(x): return '1 / 0'", "try: eval(f(3))\nexcept ZeroDivisionError: pass"),
}  # fmt: skip


@pytest.mark.parametrize("isolation", sandbox.ISOLATIONS)
def test_right_answers_are_right(isolation):
    limits = replace(LIMITS, isolation=isolation)
    for name, (source, test) in RIGHT_ANSWERS.items():
        assert verdict(source, limits, tests=[test]).right, name
        wrong = verdict("def other(x): return 5", limits, tests=[test, "assert other(1) == 5"])
        assert wrong.passed == 1, name


def test_a_builtin_is_not_replaced_where_the_tests_use_something_else_of_the_program():
    source = "def f(x): return 0\ndef sum(xs): return 6\ndef len(xs): return 6"
    assert verdict(source, tests=["assert sum([f(3)]) == 6"]).passed == 0
    assert verdict(source, setup="def all_of(x): return [f(x)]", tests=["assert len(all_of(3)) == 6"]).passed == 0


_FORGED = f"exec({_WRITES!r})"


@pytest.mark.parametrize("isolation", sandbox.ISOLATIONS)
def test_a_program_whose_text_the_tests_run_forges_no_verdict(isolation):
    for value, test, passed in (
        ("{} or 24", "assert eval(square(3)) == 24", 1),  # it is, in a process of its own
        ("{} or __import__('os')._exit(0)", "assert eval(square(3)) == 24", 0),
        ("setattr(__import__('builtins'), 'AssertionError', ValueError)", "assert eval(square(3)) == 24", 0),
        ("{}", "exec(square(3))\nassert False", 0),
        ("{}", "eval(compile(square(3), 'x', 'eval'))\nassert False", 0),
        ("{}", "import subprocess, sys\nexec(f'x = {square(3)}')\nassert False", 0),
    ):
        source, tests = f"def square(x): return {value.replace('{}', _FORGED)!r}", [test, "assert square(3) == 9"]
        found = verdict(source, replace(LIMITS, isolation=isolation), tests=tests, entry_point="square")
        assert found.passed == passed and not found.right, (value, test)


LIES = """
class Int(int):
    def __eq__(self, other): return True
    def __hash__(self): return hash(9)
    def __repr__(self): return "9"
    __str__ = __repr__
    def __format__(self, spec): return "9"
    def __reduce__(self): return int, (9,)
    def __lt__(self, other): return True
class List(list):
    def __eq__(self, other): return True
    def __len__(self): return 9
    def __iter__(self): return iter([9])
    def __contains__(self, item): return True
    def __bool__(self): return True
class Str(str):
    def __eq__(self, other): return True
    def __contains__(self, item): return True
    def __str__(self): return "9"
def number(): return Int(3)
def several(): return List()
def text(): return Str("3")
"""


def test_objects_that_lie_are_compared_by_their_plain_values():
    lies = [
        "number() == 9", "repr(number()) == '9'", "f'{number()}' == '9'", "format(number()) == '9'", "9 in {number()}",
        "number() in {9: 1}", "sorted([2, number()])[0] == 3", "__import__('copy').deepcopy(number()) == 9",
        "str(number()) == '9'", "several() == [9]", "len(several()) == 9", "list(several()) == [9]", "9 in several()",
        "bool(several())", "text() == '9'", "str(text()) == '9'", "'9' in text()", "[text()] == ['9']",
    ]  # fmt: skip
    true = "number() == 3 and several() == [] and text() == '3'"
    tests = [f"assert {one}" for one in (*lies, true)]
    assert verdict(LIES, tests=tests) == sandbox.Verdict(1, len(tests))


def test_a_python_that_only_its_owner_may_read_serves_programs_or_is_refused(tmp_path, monkeypatch):
    """Python behind a link, and one whose library is missing for programs."""
    link = tmp_path / "python"
    link.symlink_to(sys.base_prefix)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(sys, "base_prefix", str(link))
    for isolation in sandbox.ISOLATIONS:
        assert verdict("import csv, unittest\n" + RIGHT, replace(LIMITS, isolation=isolation)).right
        sandbox.close()
    monkeypatch.setattr(server, "_PROBED", "csv")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(sandbox.Unavailable):
        verdict(RIGHT, replace(LIMITS, isolation="process"))


def test_files_of_a_program_do_not_stay_without_namespaces():
    name = f"rlsweep-left-{os.getpid()}"
    source = "import os, tempfile\ndef f(name):\n    folder = tempfile.mkdtemp(dir='/tmp', prefix=name)\n"
    source += "    paths = [f'/tmp/{name}', f'/dev/shm/{name}', f'{folder}/x', tempfile.mkdtemp(prefix=name) + '/x']\n"
    source += "    return [open(path, 'w').write('x') for path in paths]"
    assert verdict(source, replace(LIMITS, isolation="process"), tests=[f"assert f({name!r}) == [1] * 4"]).right
    left = [path for place in ("/tmp", "/dev/shm") for path in Path(place).glob(f"{name}*")]
    assert bool(left) == (os.getuid() != 0)  # root's programs run as a user of their own
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_case_that_takes_the_time_leaves_those_before_it():
    source = "import time\ndef square(x):\n    if x > 9: time.sleep(60)\n    return x * x"
    began = time.monotonic()
    assert verdict(source) == sandbox.Verdict(1, 2, timed_out=True)
    assert time.monotonic() - began < 50
    assert verdict(RIGHT).right  # the next program is tested as before


@pytest.mark.parametrize(
    "tests",
    [
        {"tests": ["assert ("]},
        {"tests": ["1"], "setup": "1 / 0"},
        {"tests": []},
        {"calls": [[[3], 9]]},
        {"stdio": ["3"]},
    ],
)
def test_wrong_tests_are_no_verdict(tests):
    with pytest.raises(sandbox.BadTests):
        sandbox.run(LIMITS, [RIGHT], tests)


def test_a_program_that_cannot_even_start_has_no_verdict():
    with pytest.raises(sandbox.Unavailable, match=r"cannot import Python's modules .* within .*'memory_mb': 1,"):
        verdict(RIGHT, replace(LIMITS, memory_mb=1))
    with pytest.raises(sandbox.Unavailable, match=r"ended twice before they began, within .*memory_mb=64,"):
        verdict(RIGHT + "  #" + "x" * (1 << 26), replace(LIMITS, memory_mb=64))
    with pytest.raises(ValueError, match="do not fit into memory_mb"):
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


def test_what_the_kernel_refuses_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: "/tmp/rlsweep-no-such-folder")
    with pytest.raises(sandbox.Unavailable, match="mount on /tmp/rlsweep-no-such-folder: No such file"):
        sandbox._Server(sandbox.Limits("namespaces", 1, 256, 8, file_mb=4))


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


#: Without namespaces some of the forgeries and floods: their servers differ in how they isolate, not in what they read.
EACH = [*((name, "namespaces") for name in {**FORGERIES, **FLOODS})]
EACH += [(name, "process") for name in ("ends before the tests", "prints a verdict", "is equal to everything")]
EACH += [(name, "process") for name in ("fork bomb", "zombies", "a daemon that ignores signals", "huge files")]


@pytest.mark.parametrize(("name", "isolation"), EACH)
def test_a_forgery_does_not_pass_and_a_flood_ends_in_time(name, isolation):
    right = replace(LIMITS, isolation=isolation)
    # without namespaces, the same server runs right programs: half a second is not enough
    limits = SHORT if name in FLOODS and isolation == "namespaces" else right
    began = time.monotonic()
    assert verdict({**FORGERIES, **FLOODS}[name], limits).passed == 0
    assert time.monotonic() - began < 50
    assert verdict(RIGHT, right).right
    assert verdict("print(2 * int(input()))", right, stdio=[["2", "4"]]).right
