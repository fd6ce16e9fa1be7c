"""What the product says, word for word: `wording.txt` beside the tests has a section for each text.

    .venv/bin/python -m pytest -n 0 --write-wording tests/launcher/test_hypotheses.py

writes the sections of these files anew. A text has {tmp} for the test's folder, and {root} for that of the project.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAD = "== "
_written: defaultdict[Path, dict[str, str]] = defaultdict(dict)


def read(golden: Path) -> dict[str, str]:
    """The texts of a golden file by section: the test's file and name, and a number from the second text on."""
    parts = golden.read_text(encoding="utf-8").split(f"\n{HEAD}") if golden.exists() else []
    texts = (part.removeprefix(HEAD).rstrip("\n").partition("\n") for part in parts)
    return {section: text for section, _, text in texts}


@pytest.fixture
def worded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str | Iterable[str]], None]:
    """worded(TEXT or LINES): asserts that this is what the golden file has for the next text of the test."""
    golden = request.path.with_name("wording.txt")
    sections = [request.node.nodeid.rpartition("/")[2]]

    def check(said: str | Iterable[str]) -> None:
        text = said if isinstance(said, str) else "\n".join(said)
        for place, name in ((str(tmp_path), "{tmp}"), (str(ROOT), "{root}"), (sys.prefix, "{root}/.venv")):
            text = text.replace(place, name)
        text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        if request.config.getoption("--write-wording"):
            _written[golden][sections[-1]] = text
        else:
            assert text == read(golden).get(sections[-1])
        sections.append(f"{sections[0]} {len(sections) + 1}")

    return check


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-wording", action="store_true", help="write what the tests say into wording.txt")


def pytest_sessionfinish() -> None:
    for golden, texts in _written.items():
        files = {section.partition("::")[0] for section in texts}
        kept = {section: text for section, text in read(golden).items() if section.partition("::")[0] not in files}
        whole = sorted({**kept, **texts}.items())
        golden.write_text("\n".join(f"{HEAD}{section}\n{text}\n" for section, text in whole), encoding="utf-8")
