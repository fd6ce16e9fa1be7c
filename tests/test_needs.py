"""A test whose need is missing is skipped with the reason; a required marker that runs nothing fails the run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
TESTS = """
    import pytest

    def test_plain(): pass

    @pytest.mark.latex
    def test_latex(): pass

    @pytest.mark.processes
    @pytest.mark.latex
    def test_both(): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """run(*options, latex=BOOL) -> result of pytest over TESTS, with or without a pdflatex on PATH."""
    pytester.makepyfile(TESTS)
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def start(*options: str, latex: bool = False) -> pytest.RunResult:
        if latex:
            (programs / "pdflatex").write_text("#!/bin/sh\n")
            (programs / "pdflatex").chmod(0o755)
        return pytester.runpytest_inprocess("-p", "tests.needs", "-p", "no:cacheprovider", "-rs", *options)

    return start


def test_a_plain_run_skips_what_is_missing_and_says_why(run):
    result = run()
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*compiles LaTeX: pdflatex was not found: apt-get install texlive-latex*"])
    assert result.ret == 0


def test_a_plain_run_leaves_what_is_run_on_request_to_its_command(run):
    result = run(latex=True)
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*starts the programs that users start*: `make test-runs` runs it"])


def test_required_tests_run_alone(run):
    run("--require", "latex", latex=True).assert_outcomes(passed=1, skipped=1, deselected=1)
    run("--require", "latex,processes", latex=True).assert_outcomes(passed=2, deselected=1)


def test_required_tests_are_found_in_folders_with_conftests_of_their_own(run, pytester):
    for folder in ("one", "two"):
        for name, text in {"conftest": "", f"test_{folder}": TESTS}.items():
            pytester.makepyfile(**{f"{folder}/{name}": text})
    run("--require", "latex", "one", "two", latex=True).assert_outcomes(passed=2, skipped=2, deselected=2)


def test_what_is_left_to_a_command_can_run_beside_the_others(run):
    run("--also", "processes", latex=True).assert_outcomes(passed=3)
    run("--also", "processes,latex").assert_outcomes(passed=3)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_required_marker_that_runs_nothing_fails(run, workers):
    result = run("--require", "latex,train", *workers, latex=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--require train: no test with this marker passed"])


def test_a_required_need_that_is_missing_is_an_error_before_the_first_test(run):
    result = run("--require", "latex")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--require latex: pdflatex was not found: apt-get install*"])
    result = run("--require", "latx")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--require latx: no marker has this name; the markers are browser, *"])
