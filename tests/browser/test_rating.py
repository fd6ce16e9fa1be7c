"""The page on which people choose, as a rater uses it: by keyboard and by mouse, closed and opened again, saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.judging.results import judged
from launcher.run.folder import responses_path, run_folder
from tests.analysis.conftest import ANALYSIS, sweeps_in
from tests.analysis.test_responses import HOSTILE
from tests.browser.conftest import Open, axe

pytestmark = pytest.mark.browser


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two methods that answered to hostile prompts in kind."""
    analysis = {**ANALYSIS, "metrics": [], "time_to": []}
    made = sweeps_in(tmp_path)(groups=("C0", "C1"), seeds=(0,), steps=8, analysis=analysis)
    for group in ("C0", "C1"):
        with open(responses_path(run_folder(made.parent, f"{group}-0")), "w") as file:
            for place, said in enumerate(HOSTILE):
                line = {"step": 8, "attempt": 1, "id": str(place), "prompt": said, "reward": 0.0, "answer": ""}
                file.write(json.dumps({**line, "response": said if group == "C0" else f"{said}!"}) + "\n")
    assert main(["judge", "export", str(made), "--to", str(tmp_path / "page.html")]) == 0
    return made


def text(page: Any, element: str) -> str:
    return str(page.locator(element).inner_text())


def test_answers_are_chosen_kept_saved_and_imported(folder: Path, open_page: Open, tmp_path: Path) -> None:
    page = open_page(tmp_path / "page.html").page
    count = len(HOSTILE)
    assert text(page, "#count") == f"Pair 1 of {count}; 0 answered."
    page.keyboard.press("1")
    page.keyboard.press("0")
    page.get_by_role("button", name="Response 2 is better").click()
    assert text(page, "#count") == f"Pair 4 of {count}; 3 answered."
    page.keyboard.press("ArrowLeft")
    chosen = page.get_by_role("button", name="Response 2 is better")
    assert chosen.get_attribute("aria-pressed") == "true"
    page.keyboard.press("1")  # another choice
    page.get_by_role("button", name="Skip").click()
    context = page.context
    for _ in range(100):  # another tab may have another process, which knows what is kept only some time later
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        if text(page, "#count") != f"Pair 1 of {count}; 0 answered.":
            break
        page.close()
    assert text(page, "#count") == f"Pair 5 of {count}; 3 answered."
    page.get_by_role("button", name="Save answers").click()
    assert text(page, "#saved") == "Write your name first."
    page.get_by_label("Your name").fill("Ann 10")  # a digit in a name is no answer
    with page.expect_download() as download:
        page.get_by_role("button", name="Save answers").click()
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    content = json.loads(saved.read_text())
    assert content["rater"] == "Ann 10" and content["answers"] == {"1": "first", "2": "tie", "3": "first"}
    assert main(["judge", "import", str(folder), str(saved)]) == 0
    (one,) = judged(read_sweep(folder))
    assert len(one.outcomes) == 3


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_every_hostile_text_is_read_as_text(
    folder: Path, open_page: Open, tmp_path: Path, scheme: str, width: int
) -> None:
    page = open_page(tmp_path / "page.html", color_scheme=scheme, viewport={"width": width, "height": 900}).page
    seen = ""
    for number in range(len(HOSTILE)):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("pre > *").count() == 0  # no text became an element
        seen += text(page, "#prompt")
        page.keyboard.press("ArrowRight")
        assert text(page, "#count").startswith(f"Pair {min(number + 2, len(HOSTILE))} of")
    assert "<script>alert(1)</script>" in seen and "⟨U+202E⟩evil" in seen
    assert axe(page, "body")[1] == []
