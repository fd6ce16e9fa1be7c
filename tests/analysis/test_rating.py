"""Human preference: a page that names no method, and answers that are checked against it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.data.sweep import read_sweep
from analysis.judging.results import agreements, judged
from launcher.run.folder import responses_path, run_folder
from tests.analysis.conftest import MakeSweep
from tests.analysis.test_judging import LENGTHS, Made, write_responses
from tests.analysis.test_responses import HOSTILE


@pytest.fixture
def rated(make_sweep: MakeSweep) -> Made:
    """rated(): the experiment of test_judging, to be judged by people."""

    def make() -> Path:
        analysis = {"primary": {"metric": "analysis/reward_sum_mean"}}
        folder = make_sweep(groups=("C0", "C1", "PTRW"), seeds=(0, 1), steps=8, analysis=analysis)
        write_responses(folder, LENGTHS)
        return folder

    return make


def export(folder: Path, *words: str, to: str = "page.html") -> tuple[Path, dict[str, Any]]:
    """Write a page; its path and its data."""
    page = folder.parent / to
    assert main(["judge", "export", str(folder), "--to", str(page), *words]) == 0
    return page, data_of(page)


def data_of(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


def answer(folder: Path, data: dict[str, Any], rater: str, choose: Any, name: str = "") -> Path:
    """The file that a rater saves: choose(item) is first, second, tie or None."""
    given = {str(n): verdict for n, item in enumerate(data["items"], start=1) if (verdict := choose(item))}
    path = folder.parent / f"{name or rater}.json"
    path.write_text(json.dumps({"format": 1, "export": data["export"], "rater": rater, "answers": given}))
    return path


def longer(item: dict[str, str]) -> str:
    first, second = len(item["first"]), len(item["second"])
    return "first" if first > second else "second" if second > first else "tie"


def test_the_page_is_blind_and_random_and_the_same_again(rated: Made) -> None:
    folder = rated()
    page, data = export(folder)
    text = page.read_text()
    assert len(data["items"]) == 18  # of 24 pairs, one is of equal texts, and five are the same texts again
    for name in ("C0", "C1", "PTRW", "BNTO", "GRPO", "quickstart", "reward", "seed", str(folder.parent)):
        assert name not in text, name
    prompts = [item["prompt"] for item in data["items"]]
    assert prompts != sorted(prompts)
    shorter_first = [len(item["first"]) < len(item["second"]) for item in data["items"]]
    assert 3 < sum(shorter_first) < 15
    assert export(folder, to="again.html")[1] == data
    other = export(folder, "--seed", "1", to="other.html")[1]
    assert other["export"] != data["export"] and other["items"] != data["items"]
    few = export(folder, "--pairs", "5", to="few.html")[1]
    assert few["items"] == data["items"][:5] and few["export"] != data["export"]


def test_answers_become_win_rates_and_raters_are_compared(rated: Made, capsys: Any) -> None:
    folder = rated()
    _, data = export(folder)
    ann = answer(folder, data, "Ann", longer)
    bob = answer(folder, data, "Bob", lambda item: longer(item) if item["prompt"] != "p1" else None)
    eve = answer(folder, data, "Eve", lambda item: {"first": "second", "second": "first"}.get(longer(item), "tie"))
    assert main(["judge", "import", str(folder), str(ann), str(bob)]) == 0
    said = capsys.readouterr().out
    assert "Ann: 18 of 18 pairs answered" in said and "Ann and Bob: 100% of" in said and "kappa 1.00" in said
    (one,) = judged(read_sweep(folder))
    assert one.title == "2 raters: Ann, Bob"
    assert one.win_rates("C0")["PTRW", "PTRW-0"] == 0
    assert one.win_rates("C0")["C1", "C1-0"] == pytest.approx(4 / 5)  # the pair of equal texts was not shown
    assert main(["judge", "import", str(folder), str(eve)]) == 0
    (one,) = judged(read_sweep(folder))
    assert [of.names for of in one.raters] == [("Ann", "Bob"), ("Ann", "Eve"), ("Bob", "Eve"), ("Ann", "Bob", "Eve")]
    assert one.raters[1].same == 0 and one.raters[1].kappa == pytest.approx(-1, abs=0.4) and one.raters[3].same == 0
    assert main(["judge", "import", str(folder), str(answer(folder, data, "Eve", longer, "eve2"))]) == 0
    assert "which replace other answers of this rater" in capsys.readouterr().out
    assert main(["judge", str(folder), "--by", "reward"]) == 0
    both = agreements(judged(read_sweep(folder)))
    assert both[0].names == ("raters", "reward") and both[0].kappa == 1


def test_answers_to_responses_that_are_gone_are_left_out(rated: Made) -> None:
    folder = rated()
    _, data = export(folder)
    assert main(["judge", "import", str(folder), str(answer(folder, data, "Ann", longer))]) == 0
    path = responses_path(run_folder(folder.parent, "PTRW-0"))
    path.write_text(path.read_text().replace('"x"', '"y"'))
    (one,) = judged(read_sweep(folder))
    assert one.notes == ("5 answers to responses that the runs no longer have are left out",)  # C1 has the sixth, too
    assert ("PTRW", "PTRW-0") not in one.win_rates("C0")


def test_hostile_texts_stay_texts(rated: Made) -> None:
    folder = rated()
    path = responses_path(run_folder(folder.parent, "C1-0"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, evil in zip(lines, HOSTILE, strict=False):
        line["response"] = evil
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page, data = export(folder)
    assert page.read_text().count("</script>") == 2 and "<img" not in page.read_text()
    shown = [text for item in data["items"] for text in (item["first"], item["second"])]
    assert "<script>alert(1)</script>" in shown and "\u202e" not in "".join(shown)
    assert any("⟨U+202E⟩evil" in text for text in shown)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"export": "0" * 16}, "the answers are to no page of this experiment; its pages are "),
        ({"export": "../../x"}, "the answers are to no page of this experiment"),
        ({"format": 2}, "file.format = 2: must be 1"),
        ({"rater": "\n"}, "must be a name"),
        ({"answers": {"99": "tie"}}, "answers.99: the page has the pairs 1 to 18"),
        ({"answers": {"1": "left"}}, "answers.1 = 'left': must be one of first, second, tie"),
        ({"answers": []}, "file.answers = []: must be a mapping"),
    ],
)
def test_other_answers_are_refused_before_any_is_kept(rated: Made, capsys: Any, change: Any, said: str) -> None:
    folder = rated()
    _, data = export(folder)
    good = answer(folder, data, "Ann", longer)
    bad = answer(folder, data, "Bob", longer)
    bad.write_text(json.dumps({**json.loads(bad.read_text()), **change}))
    assert main(["judge", "import", str(folder), str(good), str(bad), str(folder / "nowhere.json")]) == 2
    errors = capsys.readouterr().err
    assert said in errors and "Fix: " in errors and "nowhere.json: no answers of a rater" in errors
    assert judged(read_sweep(folder)) == ()


def test_an_export_overwrites_nothing_and_shows_something(rated: Made, capsys: Any) -> None:
    folder = rated()
    export(folder)
    assert main(["judge", "export", str(folder), "--to", str(folder.parent / "page.html")]) == 2
    assert "the file exists. Fix: choose another name" in capsys.readouterr().err
    assert main(["judge", "export", str(folder), "--to", str(folder.parent / "x.html"), "--pairs", "0"]) == 2
    assert "--pairs 0: must be 1 or more" in capsys.readouterr().err
