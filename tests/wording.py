"""What the product says, word for word: `wording.txt` beside the tests has a section for each; -- is between texts.

    .venv/bin/python -m pytest -n 0 --write-wording tests/launcher/test_preregistration.py

writes the sections of these files anew. A text has {tmp} for the test's folder, and {root} for that of the project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

Worded = Callable[[str | Iterable[str]], None]
ROOT = Path(__file__).parents[1]
HEAD, BETWEEN = "== ", "\n--\n"
_written: dict[Path, dict[str, list[str]]] = {}


def read(golden: Path) -> dict[str, list[str]]:
    """The texts of each test, by the names of its file and its own."""
    parts = golden.read_text(encoding="utf-8").split(f"\n{HEAD}") if golden.exists() else []
    sections = (part.removeprefix(HEAD).removesuffix("\n").partition("\n") for part in parts)
    return {name: text.split(BETWEEN) for name, _, text in sections}


@pytest.fixture
def worded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worded]:
    """worded(TEXT or LINES): asserts that this is what the golden file has for the next text of the test."""
    golden, name = request.path.with_name("wording.txt"), f"{request.path.name}::{request.node.name}"
    write, texts = request.config.getoption("--write-wording"), list[str]()
    expected = read(golden).get(name, [])

    def check(said: str | Iterable[str]) -> None:
        text = said if isinstance(said, str) else "\n".join(said)
        for place, known in ((str(tmp_path), "{tmp}"), (str(ROOT), "{root}")):
            text = text.replace(place, known)
        texts.append("\n".join(line.rstrip() for line in text.strip("\n").splitlines()))
        assert write or texts == expected[: len(texts)]

    yield check
    if write:
        _written.setdefault(golden, {}).update({name: texts} if texts else {})
    else:
        assert len(texts) == len(expected), "the test has said more or less than the golden file"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-wording", action="store_true", help="write what the tests say into wording.txt")


def pytest_sessionfinish() -> None:
    for golden, texts in _written.items():
        files = {name.partition("::")[0] for name in texts}
        kept = {name: own for name, own in read(golden).items() if name.partition("::")[0] not in files}
        whole = sorted({**kept, **texts}.items())
        golden.write_text("\n".join(f"{HEAD}{name}\n{BETWEEN.join(own)}\n" for name, own in whole), encoding="utf-8")
