"""A real Chromium without a window, for the report as a reader has it: opened from its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.analysis import qstar
from tests.analysis.conftest import ended, reported, sweeps_in, without


def axe(page: Any, *part: str) -> tuple[set[str], list[tuple[str, str]]]:
    """The rules of axe that the page, or this part of it, keeps; and those it breaks, with the first breach."""
    package = pytest.importorskip("axe_playwright_python")
    page.evaluate((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("part => part ? axe.run(part) : axe.run(document)", *part)
    serious = [rule for rule in found["violations"] if part or rule["impact"] in ("serious", "critical")]
    return {rule["id"] for rule in found["passes"]}, [(rule["id"], rule["nodes"][0]["html"]) for rule in serious]


@dataclass
class Opened:
    """A page, and what it did that a reader would not want: messages of errors, requests that leave its file."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium as the system has it. It ends with its module: other tests look for processes that stay."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=needs.chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """open_page(PATH, **context) -> Opened; at the end it is asserted that no page logged an error or asked the
    network."""
    pages: list[Opened] = []

    @contextmanager
    def context(**options: Any) -> Iterator[Any]:
        made = browser.new_context(**options)
        yield made
        made.close()

    with ExitStack() as stack:

        def start(path: Path, **options: Any) -> Opened:
            made = stack.enter_context(context(**{"viewport": {"width": 1200, "height": 900}, **options}))
            opened = Opened(made.new_page())
            opened.page.on("console", lambda said: opened.errors.append(said.text))
            opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
            opened.page.on("request", lambda request: opened.requests.append(request.url))
            opened.page.goto(path.as_uri())
            pages.append(opened)
            return opened

        yield start
        for opened in pages:
            assert opened.errors == []
            assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
            assert len([url for url in opened.requests if url.startswith("file:")]) == 1  # itself, no neighbour


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page on eight methods with scatter, band, histogram and Pareto front, of which one run failed and one is
    not there."""
    folder = qstar.make(sweeps_in(tmp_path_factory.mktemp("sweep")))
    error = {"type": "RuntimeError", "message": "loss exploded", "traceback": ""}
    without(ended(folder, "failed", "q_star-1", error=error), "dpo-2")
    return reported(folder).report / "index.html"
