"""Which small faults in the code do the tests notice, and do they still, once tests or modules have been rearranged?

    python -m tests.mutants record --seed 14 --count 108    # makes tests/mutants.json anew: about an hour
    python -m tests.mutants check                           # tries the killed ones of tests/mutants.json again

A mutant is the code with one fault: `<` for `<=`, a statement gone, a condition turned round. The suite kills it if a
test fails with it that passes without it. Before tests are merged or made faster, and before modules move, the list in
tests/mutants.json says what was killed, and by which test; afterwards `check` must find the same ones killed, by that
test or by another. A mutant that survived is in the list as well: it may change nothing that anyone could observe.

How a mutant is found again is told in tests/mutation.py. All of them are put into a copy of the working tree. Tests in
tests/cluster are not asked: they need a SLURM or a Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutation import Mutant, find, mutants

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".json")
PACKAGES = ("launcher", "trainer_ext", "analysis")
NOT_PRODUCT = {"tests", "benchmarks"}
NEEDS_CLUSTER = ("launcher/schedulers/slurm", "launcher/schedulers/ray", "launcher/schedulers/hydra_launcher")
# What runs the code that no unit test runs in its own process.
SLOW = {
    "launcher": ("tests/launcher/test_sweep.py", "tests/launcher/test_cancel.py", "tests/launcher/test_pool.py"),
    "trainer_ext": ("tests/trainer_ext/test_train.py", "tests/trainer_ext/test_rollout.py"),
    "analysis": ("tests/analysis/test_report.py", "tests/analysis/test_importing.py"),
}
# Tests that a plain run leaves to other commands.
ALSO = ("--also", "processes,train,peer")
UNCOVERED = 1 / 8  # share of the mutants on lines that no unit test runs
FIRST, ALL = (10, 30.0), (120, 240.0)  # how many of the tests that run a line are asked, and for how many seconds
SILENCE_S, LIMIT_S = 120, 1200  # for one test, for one run of pytest
MEMORY = 12 * 2**30
# What tests and product import from elsewhere and takes long.
HEAVY = ("hypothesis", "matplotlib.figure", "omegaconf", "hydra", "pandas", "pyarrow.parquet", "scipy.stats", "torch")


# ---------------------------------------------------------------- a copy of the tree, and pytest in it


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True)
    return [name for name in done.stdout.split("\0") if name]


def copy_tree(place: Path) -> Path:
    """A clone of the repository with what is not committed yet."""
    tree = place / "tree"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(tree)], check=True)
    for name in _git("ls-files", "-z", "--modified", "--others", "--exclude-standard"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copyfile(ROOT / name, tree / name)
        else:
            (tree / name).unlink(missing_ok=True)
    return tree


def all_mutants(tree: Path) -> list[Mutant]:
    files = sorted(path.relative_to(tree) for path in tree.rglob("*.py"))
    product = [str(file) for file in files if file.parts[0] not in NOT_PRODUCT]
    return [one for file in product for one in mutants(file, (tree / file).read_text())]


def run_tests(tree: Path, *arguments: str, limit: float = math.inf) -> tuple[int, str]:
    """pytest in the copy, in a fork of this process that has the slow imports behind it: its status and its output."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            _be_pytest(tree, arguments, output.fileno())
        end = time.monotonic() + limit
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a mutant has left behind
        output.seek(0)
        return os.waitstatus_to_exitcode(done[1]), output.read()


def _be_pytest(tree: Path, arguments: tuple[str, ...], output: int) -> NoReturn:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))  # a loop without end may fill a list
        os.chdir(tree)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[:] = [str(tree), *(place for place in sys.path if place not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]  # they are the working tree's
        status = int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments]))
        sys.stdout.flush()
    finally:
        os._exit(status)


def _failed(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, flags=re.MULTILINE)


def killer(tree: Path, mutant: Mutant, tests: list[str], *arguments: str) -> str | None:
    """The first test that fails with the mutant; a test that hangs fails, too."""
    path = tree / mutant.file
    source = path.read_text()
    path.write_text(mutant.apply(source))
    try:
        status, output = run_tests(tree, "-x", f"--timeout={SILENCE_S}", *arguments, *tests, limit=LIMIT_S)
    finally:
        path.write_text(source)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()  # Python cannot tell two texts of one size and one second apart
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"pytest found none of {tests}:\n{output[-2000:]}")
    if status == -signal.SIGKILL:
        print(f"{'undecided':9}  its tests took too long")
    return None if status in (0, -signal.SIGKILL) else next(iter(_failed(output)), tests[0])


# ---------------------------------------------------------------- record


def measure(tree: Path, folder: Path) -> None:
    """Which unit test runs which line, and how long each test takes."""
    packages = ",".join(PACKAGES)
    (folder / "rc").write_text(f"[run]\nrelative_files = true\nsource = {packages}\ndata_file = {folder}/data\n")
    own = ["-n", "auto", "--durations=0", "--durations-min=0.001"]
    cov = ["--cov", f"--cov-config={folder / 'rc'}", "--cov-context=test", "--cov-report="]
    _, output = run_tests(tree, *own, *cov)
    (folder / "log").write_text(output)


class Evidence:
    """What `measure` left in a folder."""

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData  # `check` does without

        self._data = CoverageData(str(folder / "data"))
        self._data.read()
        self._contexts: dict[str, dict[int, list[str]]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        pattern = r"^(\d+\.\d+)s (?:setup|call) +(tests/.*)$"
        log = (folder / "log").read_text()
        for seconds, test in re.findall(pattern, log, flags=re.MULTILINE):
            self._seconds[test] += float(seconds)
        self._failing = set(_failed(log))

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run its lines: the shortest of every file first, so that the first few differ."""
        if mutant.file not in self._contexts:
            self._contexts[mutant.file] = self._data.contexts_by_lineno(mutant.file)
        of_file = self._contexts[mutant.file]
        contexts = {context for line in mutant.lines for context in of_file.get(line, []) if context}
        tests = {context.rsplit("|", 1)[0] for context in contexts} - self._failing
        rank: Counter[str] = Counter()
        ordered = []
        for test in sorted(tests, key=lambda one: (self._seconds[one], one)):
            file = test.split("::")[0]
            ordered.append((rank[file], self._seconds[test], test))
            rank[file] += 1
        return [test for _, _, test in sorted(ordered)]

    def some(self, tests: list[str], most: int, seconds: float) -> list[str]:
        chosen: list[str] = []
        total = 0.0
        for test in tests[:most]:
            total += self._seconds[test]
            if chosen and total > seconds:
                continue
            chosen.append(test)
        return chosen


def choose(candidates: list[Mutant], evidence: Evidence, seed: int, count: int) -> list[Mutant]:
    """As many of every package, from as many of its modules and operators as there are."""
    draw = random.Random(seed)
    chosen = []
    for package in PACKAGES:
        own = [one for one in candidates if one.file.startswith(f"{package}/")]
        covered = [one for one in own if evidence.tests(one)]
        rest = [one for one in own if not evidence.tests(one) and not one.file.startswith(NEEDS_CLUSTER)]
        unrun = round(count / len(PACKAGES) * UNCOVERED)
        for pool, wanted in ((covered, count // len(PACKAGES) - unrun), (rest, unrun)):
            modules: defaultdict[str, defaultdict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
            for one in pool:
                modules[one.file][one.operator].append(one)
            order = draw.sample(sorted(modules), len(modules))
            for turn in range(wanted):
                operators = modules[order[turn % len(order)]]
                operator = draw.choice(sorted(operators))
                chosen.append(operators[operator].pop(draw.randrange(len(operators[operator]))))
                if not operators[operator]:
                    del operators[operator]
    return chosen


def save(results: list[tuple[Mutant, str | None]], seed: int) -> None:
    (commit,) = _git("rev-parse", "--short", "HEAD")
    lines = ",\n".join(json.dumps({**one.listed(), "killed_by": by}, ensure_ascii=False) for one, by in results)
    LIST.write_text(f'{{"commit": "{commit.strip()}", "seed": {seed}, "mutants": [\n{lines}\n]}}\n')


def record(tree: Path, folder: Path, seed: int, count: int, slow: int) -> None:
    if not (folder / "data").exists():
        measure(tree, folder)
    evidence = Evidence(folder)
    results: list[tuple[Mutant, str | None]] = []
    for one in choose(all_mutants(tree), evidence, seed, count):
        tests, by = evidence.tests(one), None
        for limits in (FIRST, ALL):
            by = by or (killer(tree, one, evidence.some(tests, *limits)) if tests else None)
        print(f"{by or 'survived'}  {one}", flush=True)
        results.append((one, by))
        save(results, seed)
    left = [place for place, (_, by) in enumerate(results) if by is None]
    for place in sorted(left, key=lambda place: bool(evidence.tests(results[place][0])))[:slow]:
        one = results[place][0]
        by = killer(tree, one, list(SLOW[one.file.split("/")[0]]), *ALSO)
        print(f"{by or 'survived'}  {one}", flush=True)
        results[place] = (one, by)
        save(results, seed)
    failing = set(_failed(run_tests(tree, *ALSO, *sorted({by for _, by in results if by}))[1]))
    save([(one, None if by in failing else by) for one, by in results], seed)


# ---------------------------------------------------------------- check


def check(tree: Path) -> int:
    listed = [(entry.pop("killed_by"), Mutant(**entry)) for entry in json.loads(LIST.read_text())["mutants"]]
    killed = [(test, one) for test, one in listed if test]
    tests = re.findall(r"^tests/[^ \n]+\.py::.*$", run_tests(tree, "--collect-only")[1], flags=re.MULTILINE)
    known = {by: _now(by, tests) for by, _ in killed}
    failing = _failed(run_tests(tree, *ALSO, *sorted({one for ones in known.values() for one in ones}))[1])
    candidates = all_mutants(tree)
    counts: Counter[str] = Counter()
    for before, one in killed:
        mutant, by = find(one, candidates), None
        if mutant:
            asked = [test for test in known[before] if test not in failing]
            by = (killer(tree, mutant, asked, *ALSO) if asked else None) or another(tree, mutant, tests)
            outcome = "same" if by == before else "other" if by else "SURVIVES"
        else:
            outcome = "NOT FOUND"
            alike = {str(other): other for other in candidates if other.operator == one.operator}
            near = difflib.get_close_matches(str(one), alike, n=2)
        counts[outcome] += 1
        print(f"{outcome:9}  {by or before}  {mutant or one}", flush=True)
        if not mutant:
            print(*(f"           perhaps: {text}" for text in near), sep="\n", flush=True)
    print(f"{dict(counts)} of {len(killed)} that were killed; these tests fail without a mutant: {failing}")
    return int(bool(counts["SURVIVES"] or counts["NOT FOUND"] or failing))


def _now(test: str, tests: list[str]) -> list[str]:
    """A test under its name of today: it may have moved to another file, or have other parameters."""
    name = test.split("::", 1)[-1]
    for pattern in (re.escape(test), rf".*::{re.escape(name)}", rf".*::{re.escape(name.split('[')[0])}(\[.*)?"):
        if found := [one for one in tests if re.fullmatch(pattern, one)]:
            return found
    return []


def another(tree: Path, mutant: Mutant, tests: list[str]) -> str | None:
    """A unit test that kills it, in a file that names its function or module."""
    names = {mutant.function.split(".")[-1], Path(mutant.file).stem}
    files = sorted({test.split("::")[0] for test in tests} - {"tests/test_architecture.py"})
    near = [file for file in files if names & set(re.findall(r"\w+", (tree / file).read_text()))]
    return killer(tree, mutant, near) if near else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--seed", type=int, required=True)
    recording.add_argument("--count", type=int, required=True)
    recording.add_argument("--slow", type=int, default=15, help="how many mutants the slow tests are asked about")
    recording.add_argument("--coverage", type=Path, help="a folder: what is measured there once is used again")
    commands.add_parser("check")
    given = parser.parse_args()
    os.nice(10)
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        tree = copy_tree(Path(place))
        if given.command == "check":
            return check(tree)
        folder = (given.coverage or Path(place) / "coverage").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        record(tree, folder, given.seed, given.count, given.slow)
        return 0


if __name__ == "__main__":
    sys.exit(main())
