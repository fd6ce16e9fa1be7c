"""One quantity has one value in a report, wherever it stands: in the answer, tables, CSV files, figures, the page's
data, the hypotheses, the sections and on a terminal. Fields and numbers are compared, not sentences."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from analysis.figures.canvas import Sketch
from analysis.report import terminal, write
from tests.analysis.conftest import data_of, sweeps_in
from tests.analysis.foreign_logs import KINDS, RETURN, make

#: In which designs beside the paired one a kind is made: those in which it differs from the other kinds.
DESIGNS = {
    "unpaired": ("missing", "tasks", "points", "collapses", "times", "selected"),
    "unbalanced": ("gaps", "missing", "tasks", "losses", "rates", "selected"),
    "apart": ("missing", "tasks"),
}
VERDICTS = {"higher": "supported", "lower": "contradicted"}
Key = tuple[Any, ...]


@dataclass(frozen=True)
class About:
    """A number that is computed in another way, so that it is only near the others: relative tolerance."""

    value: float
    tolerance: float


class Places:
    """What stands for each quantity, by place."""

    def __init__(self) -> None:
        self.found: dict[Key, list[tuple[str, Any]]] = defaultdict(list)

    def add(self, place: str, value: Any, *key: Any) -> None:
        """Record what stands at a place; None counts as a value."""
        self.found[key].append((place, value))

    def add_all(self, place: str, fields: Mapping[str, Any], *key: Any) -> None:
        """Record the fields of a record, by their names and the key."""
        for name, value in fields.items():
            self.add(place, value, name, *key)

    def contradictions(self) -> Iterator[str]:
        """Each quantity whose values differ between two places."""
        for key, places in self.found.items():
            exact = [value for _, value in places if not isinstance(value, About)]
            if exact and not all(_agrees(value, exact[0]) for _, value in places):
                yield f"{key}: {', '.join(f'{place} {value}' for place, value in places)}"


def _agrees(value: Any, exact: Any) -> bool:
    if value is None or exact is None:
        return value is exact
    if isinstance(value, About):
        return abs(value.value - exact) <= value.tolerance * max(abs(exact), 0.05)
    if isinstance(exact, float) or isinstance(value, float):
        return bool(np.isclose(value, exact, rtol=1e-9, atol=1e-12))
    return bool(value == exact)


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no such file."""
    return list(csv.DictReader(io.StringIO(path.read_text()))) if path.is_file() else []


def number(text: str | None) -> float | None:
    """A cell of a CSV file."""
    return float(text) if text not in (None, "") else None


def read(folder: Path, printed: str) -> Places:
    """Everything that a report says of a quantity, and where."""
    report, places = folder / "report", Places()
    document = json.loads((report / "report.json").read_text())
    page = (report / "index.html").read_text()
    _records(places, document, report)
    _answer(places, document, page, printed, rows(report / "tables" / "runs.csv"))
    _differences(places, document, report, page)
    _hypotheses(places, document)
    _sections(places, document, report)
    _curves(places, document, report)
    _gaps(places, document, report, page)
    _runs(places, document, report)
    return places


def _measure(record: Mapping[str, Any]) -> Key:
    return record["metric"], record["summary"], number(str(record["threshold"] or ""))


def _primary(document: Any) -> Any:
    return next(block for block in document["comparisons"] if block["primary"])


def _records(places: Places, document: Any, report: Path) -> None:
    """report.json's comparisons, its tables, and the tables as CSV."""
    for block in document["comparisons"]:
        for group in block["groups"]:
            key = *_measure(block), group["group"]
            low, high = group["interval"] or (None, None)
            fields = {"mean": group["mean"], "low": low, "high": high, "seeds": len(group["seeds"]),
                      "seeds_planned": group["planned"]}  # fmt: skip
            if group["reached"] is not None:
                fields |= {"reached": group["reached"][0], "runs": group["reached"][1]}
            places.add_all("comparisons", fields, *key)
        for pair in block["pairs"]:
            key = *_measure(block), pair["group"]
            low, high = pair["interval"] or (None, None)
            fields = {"difference": pair["mean_difference"], "difference_low": low, "difference_high": high,
                      "p": pair["p"], "p_adjusted": pair["adjusted"], "verdict": pair["verdict"]}  # fmt: skip
            places.add_all("comparisons", fields, *key)
    for name in ("main", "metrics"):
        for record in document["tables"].get(name, ()):
            fields = {field: record[field] for field in (*_FIELDS, "verdict")}
            places.add_all(f"{name} in report.json", fields, *_measure(record), record["group"])
        for row in rows(report / "tables" / f"{name}.csv"):
            fields = {field: number(row[field]) for field in _FIELDS}
            places.add_all(f"{name}.csv", {**fields, "verdict": row["verdict"] or None}, *_measure(row), row["group"])


_FIELDS = ("mean", "low", "high", "seeds", "seeds_planned", "difference", "difference_low", "difference_high", "p",
           "p_adjusted")  # fmt: skip


def _answer(places: Places, document: Any, page: str, printed: str, runs: list[dict[str, str]]) -> None:
    """The first lines: the difference of the leader, the means that it is of, p, and the numbers of pairs."""
    block, answer = _primary(document), document["answer"]
    leading, pairs = answer["leading"], {pair["group"]: pair for pair in block["pairs"]}
    places.add("answer", leading is not None, "is compared")
    places.add("comparisons", any(p["mean_difference"] is not None for p in pairs.values()), "is compared")
    if leading is None:
        return
    pair, key = pairs[leading["group"]], (*_measure(block), leading["group"])
    low, high = leading["interval"] or (None, None)
    fields = {"difference": leading["difference"], "difference_low": low, "difference_high": high,
              "p_adjusted": leading["p_adjusted"]}  # fmt: skip
    places.add_all("leading", fields, *key)
    places.add("means of the leading", leading["means"][0] - leading["means"][1], "difference", *key)
    n = min(len(pair["seeds"]), len(pair["seeds_of_b"]))
    places.add_all("leading", {name: leading[name] for name in ("n", "outcome")}, *key)
    places.add_all("comparisons", {"n": n, "outcome": pair["outcome"]}, *key)
    if document["settings"]["pairing"] == "seed" and not document["settings"]["select"]:
        seeds = [{run["seed"] for run in runs if run["group"] == leading[side]} for side in ("group", "baseline")]
        places.add("runs.csv", len(seeds[0] & seeds[1]), "planned pairs")
        places.add("leading", leading["planned"], "planned pairs")
    for line in (answer["result"], answer["certainty"]):
        places.add("page", html.escape(line, quote=False).replace("'", "&#39;") in page, "is on the page", line)
        places.add("terminal", line in printed, "is on the page", line)
        places.add("answer", True, "is on the page", line)


def _differences(places: Places, document: Any, report: Path, page: str) -> None:
    """The figure of differences: its CSV and the page's data."""
    block = _primary(document)
    means: dict[str, dict[str, str]] = {}
    seeds: dict[str, list[float]] = defaultdict(list)
    for row in rows(report / "figures" / "differences.csv"):
        if row["seed"]:
            seeds[row["group"]].append(float(row["x"]))
        else:
            means[row["group"]] = row
    data = data_of(page).get("differences")
    svg = (report / "figures" / "differences.svg").read_text() if means else ""
    traces = {} if data is None else {trace["g"]: trace for trace in data["traces"] if trace["s"] is None}
    for pair in block["pairs"]:
        group, key = pair["group"], (*_measure(block), pair["group"])
        drawn = pair["mean_difference"] is not None
        places.add("figure", group in means, "is drawn", group)
        places.add("page's data", group in traces, "is drawn", group)
        places.add("comparisons", drawn, "is drawn", group)
        if not drawn:
            continue
        places.add("differences.csv", number(means[group]["x"]), "difference", *key)
        places.add("dots", float(np.mean(seeds[group])), "difference", *key)
        places.add("dots", len(seeds[group]), "dots", *key)
        if label := re.search(rf"{group} \(n = (\d+)", svg):
            places.add("label", int(label.group(1)), "dots", *key)
        places.add("comparisons", len(pair["contrast"]["a"]), "dots", *key)
        places.add("page's data", About(data["xs"][traces[group]["x"]][0], 1e-4), "difference", *key)
        ends = traces[group].get("i") or ((None,), (None,))
        for name, end, at in zip(("low", "high"), ends, ("difference_low", "difference_high"), strict=True):
            places.add("differences.csv", number(means[group][name]), at, *key)
            places.add("page's data", None if end[0] is None else About(end[0], 1e-4), at, *key)


def _hypotheses(places: Places, document: Any) -> None:
    """The claim that each group is better in the final value: estimate, interval and verdict."""
    final = next(b for b in document["comparisons"] if (b["metric"], b["summary"]) == (RETURN, "final"))
    words = {verdict["id"]: verdict for verdict in document["hypotheses"]}
    for record, pair in zip(document["tables"]["hypotheses"], final["pairs"], strict=True):
        key = *_measure(final), pair["group"]
        places.add("hypotheses", record["verdict"], "verdict of the claim", *key)
        places.add("verdicts", words[record["hypothesis"]]["verdict"], "verdict of the claim", *key)
        places.add("comparisons", VERDICTS.get(pair["outcome"], pair["outcome"]), "verdict of the claim", *key)
        if record["estimate"] is not None:
            ends = {"difference_low": record["low"], "difference_high": record["high"]}
            places.add_all("hypotheses", {"difference": record["estimate"], **ends}, *key)


def _sections(places: Places, document: Any, report: Path) -> None:
    """The grid, efficiency, and the survival curves."""
    block = _primary(document)
    measure, selects = _measure(block), bool(document["settings"]["select"])
    cells: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows(report / "tables" / "cells.csv"):
        cells[row["group"]].append(row)
    for group, own in cells.items():
        means = [float(row["mean"]) for row in own]
        differences = [number(row["difference"]) for row in own]
        if not selects:
            places.add("cells.csv", float(np.mean(means)), "mean", *measure, group)
            if None not in differences:
                places.add("cells.csv", float(np.mean(differences)), "difference", *measure, group)
    for row in rows(report / "tables" / "efficiency.csv"):
        key = row["metric"], "time_to", number(row["threshold"]), row["group"]
        fields = {"reached": int(row["reached"]), "runs": int(row["runs"]), "mean": number(row["restricted_mean"])}
        places.add_all("efficiency.csv", fields, *key)
    last = {row["group"]: float(row["y"]) for row in rows(report / "figures" / "reach_1.csv") if not row["seed"]}
    for row in document["tables"]["main"]:
        if row["summary"] == "time_to" and row["group"] in last:
            places.add("reach_1.csv", last[row["group"]], "not reached", row["group"])
            places.add("main", 1 - row["reached"] / row["runs"], "not reached", row["group"])


def _curves(places: Places, document: Any, report: Path) -> None:
    """The learning curves: whose seeds are drawn."""
    if document["settings"]["select"]:
        return
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(report / "figures" / "curve_eval_return.csv"):
        if "without full result" not in row["what"] and row["what"] != "":
            drawn[row["group"]][row["seed"]].append((float(row["x"]), float(row["y"])))
    svg = (report / "figures" / "curve_eval_return.svg").read_text()
    for block in document["comparisons"]:
        for group in block["groups"]:
            if block["metric"] != RETURN or block["summary"] not in ("final", "auc") or not group["seeds"]:
                continue
            name, key = group["group"], (*_measure(block), group["group"])
            curves = drawn[name]
            places.add("curves", {int(seed) for seed in curves if seed}, "whose seeds", *key)
            places.add("comparisons", set(group["seeds"]), "whose seeds", *key)
            if len(group["seeds"]) < group["planned"]:
                text = f"{name}, {len(group['seeds'])} of {group['planned']} seeds"
                places.add("legend", text in svg, "seeds in the legend", name)
                places.add("comparisons", True, "seeds in the legend", name)


def _gaps(places: Places, document: Any, report: Path, page: str) -> None:
    """How many results are missing, and of whom."""
    count = len(document["answer"]["gaps"])
    heading = re.search(r"Missing: (\d+) of (\d+) planned results", page)
    places.add("answer", count, "gaps")
    places.add("heading", int(heading.group(1)) if heading else 0, "gaps")
    block = _primary(document)
    lost = [run for run, value in block["runs"].items() if value["value"] is None]
    places.add("values", len(lost), "gaps")


def _runs(places: Places, document: Any, report: Path) -> None:
    """The values of runs, and the means that they make where a seed has one run."""
    by_group: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(report / "results.csv"):
        summary = row["summary"].partition(" ")[0].partition("@")[0]
        if row["value"]:
            by_group[row["metric"], summary, row["group"]][int(row["seed"])].append(float(row["value"]))
    for block in document["comparisons"]:
        for group in block["groups"]:
            own = by_group[block["metric"], block["summary"], group["group"]]
            lone = all(len(values) == 1 for values in own.values())
            if lone and own and not document["settings"]["select"] and block["summary"] != "time_to":
                mean = float(np.mean([values[0] for values in own.values()]))
                places.add("results.csv", mean, "mean", *_measure(block), group["group"])


CASES = [(kind, design) for design, kinds in {"paired": KINDS, **DESIGNS}.items() for kind in kinds]


@pytest.mark.parametrize(("kind", "design"), CASES)
def test_no_two_places_of_a_report_contradict_each_other(
    kind: str, design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_texts(figure: Sketch, suffix: str) -> bytes:
        texts = [text.get_text() for text in figure.canvas.findobj(Text) if text.get_visible()]
        lines = [line for text in texts for line in text.split("\n")]
        return f"<svg>{''.join(f'<text>{html.escape(line)}</text>' for line in lines)}</svg>".encode()

    monkeypatch.setattr(Sketch, "rendered", only_texts)  # the test reads nothing else of a picture
    folder = make(sweeps_in(tmp_path), kind, design)
    printed = terminal.text(write(folder))
    places = read(folder, printed)
    assert len(places.found) > 40
    assert list(places.contradictions()) == []
