"""Responses side by side, as a reader meets them: hidden with their methods, scrolled by keyboard, never a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.__main__ import main
from launcher.run.folder import responses_path, run_folder
from tests.analysis.conftest import ANALYSIS, sweeps_in
from tests.analysis.test_responses import HOSTILE
from tests.browser.conftest import Open, axe
from tests.browser.test_page import visible

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_with_responses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods that answered to hostile prompts in kind, each as often better as worse than the baseline."""
    make = sweeps_in(tmp_path_factory.mktemp("responses"))
    folder = make(groups=("C0", "C1", "PTRW"), seeds=(0,), steps=8, analysis={**ANALYSIS, "metrics": [], "time_to": []})
    for group in ("C0", "C1", "PTRW"):
        with open(responses_path(run_folder(folder.parent, f"{group}-0")), "w") as file:
            for place, said in enumerate(HOSTILE):
                reward = place % 2 if group == "C0" else 1 - place % 2
                line = {"step": 8, "attempt": 1, "id": str(place), "prompt": said, "response": said, "reward": reward}
                file.write(json.dumps(line) + "\n")
    assert main(["report", str(folder)]) == 0
    return folder / "report" / "index.html"


def test_responses_are_hidden_with_their_method_and_their_seed(page_with_responses: Path, open_page: Open) -> None:
    page = open_page(page_with_responses).page
    assert visible(page, "article.example") == 12 and visible(page, '.sides [data-group="C0"]') == 12
    page.get_by_role("checkbox", name="C1 (BNTO minimal)").uncheck()
    assert visible(page, "article.example") == 6
    assert not page.get_by_role("heading", name="C1 (BNTO minimal) against C0 (GRPO)").is_visible()
    page.get_by_role("checkbox", name="C0 (GRPO)").uncheck()
    assert visible(page, "article.example") == 6 and visible(page, '.sides [data-group="C0"]') == 0
    page.get_by_role("checkbox", name="0", exact=True).uncheck()
    assert visible(page, "article.example") == 0


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_hostile_text_breaks_neither_the_page_nor_its_reading(
    page_with_responses: Path, open_page: Open, scheme: str, width: int
) -> None:
    page = open_page(page_with_responses, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    long = page.locator("pre.long").first
    long.focus()  # so that the arrow keys scroll it
    assert long.evaluate("e => e === document.activeElement && e.scrollHeight > e.clientHeight")
    assert axe(page, "section[aria-labelledby=responses]")[1] == []
