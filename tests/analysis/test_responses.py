"""Responses side by side: which prompts come first, whose answers are shown, and hostile text that stays text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.data.responses import Responses, responses
from analysis.data.sweep import read_sweep
from analysis.report.page import MOST, text, to_csv
from launcher.run.folder import responses_path, run_folder
from tests.analysis.conftest import ANALYSIS, MakeSweep, Page, replan, reported

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202eevil\u202c \x00\x1b[31m\x07 \u200b\ufeff",
    "</pre></section>{{ 7 * 7 }}", "=1+1,\r\n\"quoted\"", "x" * 5000, "line\n" * 30, "\ud800 half", "one\rtwo",
    "مرحبا שלום 你好 👩‍👩‍👧",
]  # fmt: skip


def hostile(folder: Path) -> Path:
    """Every run answers to hostile prompts in kind, each as often better as worse than the baseline's."""
    for run in (folder.parent / "runs").iterdir():
        with responses_path(run).open("w") as file:
            for place, said in enumerate(HOSTILE):
                reward = (place + run.name.startswith("C0")) % 2
                line = {"step": 8, "attempt": 1, "id": str(place), "prompt": said, "response": said, "reward": reward}
                file.write(json.dumps(line) + "\n")
    return folder


def record(
    run: Path, rewards: Mapping[str, Sequence[float]], step: int = 8, attempt: int = 1, said: str = "said"
) -> None:
    """Append an evaluation to a run: for each prompt a response a reward."""
    with open(responses_path(run), "a") as file:
        for prompt, each in rewards.items():
            for reward in each:
                line = {"step": step, "attempt": attempt, "id": f"id-{prompt}", "prompt": prompt, "reward": reward}
                file.write(json.dumps({**line, "response": f"{said} {reward}", "answer": "42"}) + "\n")


Made = Callable[..., Path]


@pytest.fixture
def small(make_sweep: MakeSweep) -> Made:
    """small(groups=..., seeds=...): a sweep of one metric."""
    analysis = {**ANALYSIS, "metrics": [], "time_to": []}

    def make(groups: Sequence[str] = ("C0", "C1"), seeds: Sequence[int] = (0, 1), **more: Any) -> Path:
        return make_sweep(groups=groups, seeds=seeds, steps=8, analysis=analysis, **more)

    return make


def run_of(folder: Path, run_id: str) -> Path:
    return run_folder(folder.parent, run_id)


def found(folder: Path) -> Responses | None:
    return responses(read_sweep(folder))


def test_largest_wins_and_losses_come_first_over_the_seeds_of_both(small: Made) -> None:
    folder = small()
    record(run_of(folder, "C0-0"), {"a": [0], "b": [1], "c": [0.5], "d": [0], "only C0": [1]})
    record(run_of(folder, "C0-1"), {"a": [0], "b": [1], "c": [0.5], "d": [1]})
    record(run_of(folder, "C1-0"), {"a": [0], "b": [0], "c": [0.5], "d": [0.25], "only C1": [1]})
    record(run_of(folder, "C1-1"), {"a": [1], "b": [0.5], "c": [0.5], "d": [1]})
    (contrast,) = found(folder).contrasts
    shown = [(one.sides[0].prompt, one.difference, one.seed) for one in (*contrast.wins, *contrast.losses)]
    # b: lost by 1 in seed 0 and by a half in seed 1, and shown where it is lost by more
    assert shown == [("a", 0.5, 1), ("d", 0.125, 0), ("b", -0.75, 0)]
    assert (contrast.better, contrast.worse, contrast.equal) == (2, 1, 1)
    assert contrast.wins[0].means == (0.0, 0.5) and contrast.wins[0].seeds == 2
    assert [side.run for side in contrast.losses[0].sides] == ["C0-0", "C1-0"]


def test_answers_of_one_seed_are_averaged_and_the_most_different_are_shown(small: Made) -> None:
    folder = small(cells={"C1": [{"gamma": 1}, {"gamma": 2}]}, seeds=(0,))
    record(run_of(folder, "C0-0"), {"a": [1, 0]})
    record(run_of(folder, "C1-0-0"), {"a": [1, 1]})
    record(run_of(folder, "C1-0-1"), {"a": [1, 0.5]})
    (win,) = found(folder).contrasts[0].wins
    assert win.difference == 0.875 - 0.5
    assert [(side.run, side.reward) for side in win.sides] == [("C0-0", 0.0), ("C1-0-0", 1.0)]


def test_answers_are_compared_on_the_levels_that_both_have(small: Made) -> None:
    """The large model is right and the small one wrong under both methods: C1 gained on the small one alone."""
    sizes = [{"model": "small"}, {"model": "large"}]
    folder = small(cells={"C0": sizes, "C1": sizes}, seeds=(0, 1))
    record(run_of(folder, "C0-0-0"), {"a": [0]})
    record(run_of(folder, "C0-0-1"), {"a": [0.75]})
    record(run_of(folder, "C1-0-0"), {"a": [0.5]})
    record(run_of(folder, "C1-0-1"), {"a": [1]})
    record(run_of(folder, "C0-1-0"), {"a": [0]})  # without its large one, the mean of seed 1 would be a win of 0.5
    record(run_of(folder, "C1-1-0"), {"a": [0]})
    record(run_of(folder, "C1-1-1"), {"a": [1]})
    (win,) = found(folder).contrasts[0].wins
    assert win.difference == ((0.75 - 0.375) + 0) / 2 and win.seeds == 2
    assert [(side.run, side.reward) for side in win.sides] == [("C0-0-0", 0.0), ("C1-0-0", 0.5)]


def test_equal_differences_have_an_order_of_their_own(small: Made) -> None:
    folder = small(seeds=(0,))
    for run, reward, order in (("C0-0", 0, "hgfedcba"), ("C1-0", 1, "badcfehg")):
        record(run_of(folder, run), {prompt: [reward] for prompt in order})
    (contrast,) = found(folder).contrasts
    assert [one.sides[0].id for one in contrast.wins] == ["id-a", "id-b", "id-c"]
    assert contrast.better == 8 and contrast.losses == ()


def test_the_last_evaluation_that_all_have_counts_and_runs_without_one_are_named(small: Made) -> None:
    folder = small(groups=("C0", "C1", "PTRW"))
    for run in ("C0-0", "C0-1", "C1-0"):
        record(run_of(folder, run), {"a": [0]}, step=4)
        record(run_of(folder, run), {"a": [1]}, step=8)
    record(run_of(folder, "C1-1"), {"a": [0]}, step=4)  # it evaluated less often
    result = found(folder)
    assert result.step == 4 and len(result.recorded) == 4
    assert result.lacking == ("PTRW: 0 of 2 runs",)
    assert [one.groups for one in result.contrasts] == [("C0", "C1")]


def test_newest_attempt_counts_and_torn_or_bad_lines_do_not(small: Made) -> None:
    folder = small(groups=("C0",), seeds=(0,))
    run = run_of(folder, "C0-0")
    record(run, {"a": [0]}, step=4)
    record(run, {"a": [0]}, step=6, said="lost with the attempt")
    record(run, {"a": [0]}, step=8, said="superseded")
    record(run, {"a": [0]}, step=5, attempt=2, said="newest")
    assert found(folder).step == 5  # what was recorded later came before it
    record(run, {"a": [1]}, step=8, attempt=2, said="newest")
    with open(responses_path(run), "a") as file:
        file.write('[1]\n{"step": 8, "id": "x", "prompt": "x", "response": 3, "reward": 1}\n')
        file.write('{"step": 8, "id": "x", "prompt": "x", "response": "x", "reward": NaN}\n{"step": 9, "resp')
    result = found(folder)
    assert result.step == 8 and [one.response for one in result.recorded] == ["newest 1"] and result.bad == 4


def test_without_a_baseline_the_first_prompts_are_shown_of_all(small: Made) -> None:
    folder = replan(small(), lambda plan: plan.update(baseline=None))
    for run in ("C0-0", "C0-1", "C1-1"):
        record(run_of(folder, run), {"z": [0], "a": [1]})
    (contrast,) = found(folder).contrasts
    assert [one.sides[0].prompt for one in contrast.wins] == ["z", "a"]
    assert [side.run for side in contrast.wins[0].sides] == ["C0-1", "C1-1"]


def test_page_shows_hostile_text_as_text_and_goes_without_it(small: Made) -> None:
    folder = hostile(small(seeds=(0,)))
    found = reported(folder)
    page = found.page
    reader = Page(page, "pre")
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == 2 and "img" not in tags  # the page's own
    assert not any(key.startswith("on") for _, attributes in reader.tags for key in attributes)
    articles = [attributes for tag, attributes in reader.tags if tag == "article"]
    assert [one["data-group"] for one in articles] == ["C1"] * 6
    assert "<script>alert(1)</script>" in reader.texts
    section = page[page.index('id="responses"') : page.index('id="metrics"')]
    assert "the run keeps the first one, so the rewards here are a part of those in the tables" in section
    assert not any(char in section for char in "\x00\x1b\x07\u202e\u202c\u200b\ufeff")

    rows = found.rows("tables/responses")
    literal = [f"'{s}" if s.startswith("=") else s for s in HOSTILE]  # or a spreadsheet would compute it
    assert [row["response"] for row in rows] == 2 * [s.replace("\ud800", "\\ud800") for s in literal]
    assert {(row["group"], row["run"], row["seed"], row["step"]) for row in rows} == {
        ("C0", "C0-0", "0", "8"), ("C1", "C1-0", "0", "8")
    }  # fmt: skip
    for group in ("C0", "C1"):
        responses_path(run_of(folder, f"{group}-0")).unlink()
    after = reported(folder)
    assert not (after.report / "tables" / "responses.csv").exists() and 'id="responses"' not in after.page
    assert after.document["responses"] is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x1b\x7f\r", "⟨U+0000⟩⟨U+001B⟩⟨U+007F⟩⟨U+000D⟩"),
        ("\u202eabc\u2066", "⟨U+202E⟩abc⟨U+2066⟩"),
        ("\u200b\ufeff\u2028\ue000", "⟨U+200B⟩⟨U+FEFF⟩⟨U+2028⟩⟨U+E000⟩"),
        ("👩‍👩‍👧 שלום क्‍ष", "👩‍👩‍👧 שלום क्‍ष"),
    ],
)
def test_what_cannot_be_seen_is_marked_and_what_is_written_so_stays(said: str, shown: str) -> None:
    assert text(said)[0] == shown


def test_long_text_is_cut_on_the_page_and_whole_in_the_file(small: Made) -> None:
    assert (text("x" * MOST)[1], text("x" * (MOST + 5))[1]) == (0, 5)
    assert (text("x" * 50)[2], text("x" * 1000)[2], text("\n" * 20)[2]) == (False, True, True)
    folder = small(groups=("C0",), seeds=(0,))
    record(run_of(folder, "C0-0"), {"a": [0]}, said="y" * 9000)
    assert "y" * 9000 in next(csv.DictReader(io.StringIO(to_csv(found(folder)))))["response"]
