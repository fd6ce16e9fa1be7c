"""The report as a reader uses it: methods and seeds hidden, tables sorted and searched, values read, printed; hostile
responses side by side, scrolled by keyboard, never a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.conftest import ANALYSIS, reported, sweeps_in
from tests.analysis.test_responses import hostile
from tests.browser.conftest import Open, axe

pytestmark = pytest.mark.browser

CURVE = '[data-figure="curve_eval_reward_mean"]'


def visible(page: Any, query: str) -> int:
    seen = "q => [...document.querySelectorAll(q)].filter(e => e.getClientRects().length).length"
    return int(page.evaluate(seen, query))


def column(page: Any, table: str, place: int) -> list[str]:
    return [text.strip() for text in page.locator(f"#table-{table} tbody tr td:nth-child({place})").all_inner_texts()]


def test_methods_and_seeds_are_hidden_by_keyboard_everywhere_and_it_is_said(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    assert visible(page, f'{CURVE} [data-group="sft"]') > 0 and page.locator("#hidden-note").is_hidden()
    box = page.get_by_role("checkbox", name="sft")
    box.focus()
    page.keyboard.press("Space")
    assert not box.is_checked() and page.locator("#said").inner_text() == "sft hidden"
    assert visible(page, '[data-group="sft"]') == 0 and visible(page, f'{CURVE} [data-group="ppo"]') > 0
    note = page.locator("#hidden-note").inner_text()
    assert note.startswith("Hidden: sft.") and "remain those of all seeds" in note
    seeds = visible(page, f'{CURVE} [data-group="ppo"]')
    page.get_by_role("checkbox", name="1", exact=True).uncheck()
    assert visible(page, f'{CURVE} [data-group="ppo"]') == seeds - 1
    assert visible(page, '[data-seed="1"]') == 0 and visible(page, '#table-runs [data-seed="0"]') > 0
    page.get_by_role("checkbox", name="sft").check()
    page.get_by_role("checkbox", name="1", exact=True).check()
    assert visible(page, '#table-runs [data-group="sft"]') == 3 and page.locator("#hidden-note").is_hidden()


def test_table_is_sorted_within_its_parts_both_ways(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    head = page.locator("#table-runs th", has_text="seed")
    head.get_by_role("button").click()
    seeds = column(page, "runs", 3)
    assert seeds == sorted(seeds) and head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")  # the button has the focus
    assert column(page, "runs", 3) == sorted(seeds, reverse=True) and head.get_attribute("aria-sort") == "descending"
    page.locator("#table-main th", has_text="method").get_by_role("button").click()
    bodies = page.locator("#table-main tbody")
    assert bodies.count() > 1
    for place in range(bodies.count()):
        names = bodies.nth(place).locator("tr:not(.head) td:first-child").all_inner_texts()
        assert len(names) > 1 and names == sorted(names, key=str.lower)
        assert bodies.nth(place).locator("tr").first.get_attribute("class") == "head"


def test_table_is_searched_and_the_rows_are_counted_aloud(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    grid = page.locator(".grid", has=page.locator("#table-runs"))
    count = grid.locator("output")
    total = page.locator("#table-runs tbody tr").count()
    assert count.inner_text() == f"{total} rows" and count.get_attribute("aria-live") == "polite"
    grid.get_by_role("searchbox").fill("Exploded q_STAR")
    assert visible(page, "#table-runs tbody tr") == 1 and count.inner_text() == f"1 of {total} rows"
    grid.get_by_role("searchbox").fill("no such run")
    assert count.inner_text() == f"0 of {total} rows"
    grid.get_by_role("searchbox").fill("")
    page.get_by_role("checkbox", name="q_star").uncheck()
    assert count.inner_text() == f"{total - 3} of {total} rows"
    main = page.locator(".grid", has=page.locator("#table-main"))
    main.get_by_role("searchbox").fill("final value")  # the heading of a part finds its rows
    assert visible(page, "#table-main tr.head") == 1 and visible(page, "#table-main tbody tr:not(.head)") > 1


@pytest.mark.parametrize("width", [1200, 360])
def test_values_stand_beside_the_pointer_inside_the_window(report: Path, open_page: Open, width: int) -> None:
    page = open_page(report, viewport={"width": width, "height": 700}).page
    tip = page.locator("#tip")
    for figure in ("curve_eval_reward_mean", "scatter_qstar_ess_t__qstar_ess_theta", "differences"):
        plot = page.locator(f'[data-figure="{figure}"]')
        plot.scroll_into_view_if_needed()
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # scrolled
        spots = page.evaluate(SPOTS, figure)
        assert spots
        said = set()
        for x, y in spots:
            page.mouse.move(x, y)
            assert tip.is_visible()
            said.add(tip.inner_text())
            box = tip.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] >= 0
            assert box["y"] + box["height"] <= 700
        assert len(said) > 1 and all("\n" in text for text in said)
        assert any("\nstep: " in text for text in said) == (figure != "differences")
        page.mouse.move(1, 1)
        assert tip.is_hidden()


# Where some of a figure's points are on the screen, first, middle and last of each trace, as its data say.
SPOTS = """name => {
  const figure = JSON.parse(document.getElementById("data").textContent).figures[name];
  const svg = document.querySelector(`[data-figure="${name}"] svg`);
  const spots = [];
  for (const trace of figure.traces.slice(0, 6)) {
    const {box, x, y} = figure.panels[trace.p], xs = figure.xs[trace.x], last = xs.length - 1;
    for (const i of new Set([0, last >> 1, last])) {
      const at = new DOMPoint(box[0] + box[2] * (xs[i] - x[1]) / (x[2] - x[1]),
                              box[1] + box[3] * (1 - (trace.y[i] - y[1]) / (y[2] - y[1])));
      const seen = at.matrixTransform(svg.getScreenCTM());
      if (document.elementFromPoint(seen.x, seen.y)?.closest("svg") === svg) spots.push([seen.x, seen.y]);
    }
  }
  return spots;
}"""


SCROLL = """new Promise(done => {
  window.addEventListener("scroll", () => requestAnimationFrame(done), {once: true});
  window.scrollBy(0, 20);
})"""


def test_values_are_read_with_the_arrow_keys(report: Path, open_page: Open) -> None:
    page = open_page(report).page
    tip, said, plot = page.locator("#tip"), page.locator("#said"), page.locator(CURVE)
    page.locator(f"figure:has({CURVE})").evaluate("e => e.previousElementSibling.querySelector('a, summary')?.focus()")
    plot.focus()
    page.keyboard.press("Home")
    page.evaluate(SCROLL)  # as the page does by itself, later, where what has the focus was out of sight
    first = tip.inner_text().splitlines()
    assert first[0] == "ppo, mean over seeds" and first[1].startswith("step: ")
    assert first[2].startswith("reward on test prompts") and first[3].startswith("simultaneous 95% band: [")
    assert said.inner_text() == "; ".join(first)
    page.keyboard.press("ArrowRight")
    second = tip.inner_text().splitlines()
    assert float(second[1].split(": ")[1]) > float(first[1].split(": ")[1])
    page.keyboard.press("ArrowDown")
    other = tip.inner_text().splitlines()
    assert other[0] != first[0] and other[1] == second[1]  # another curve, the same step
    page.keyboard.press("ArrowUp")
    assert tip.inner_text().splitlines() == second
    page.get_by_role("checkbox", name="ppo").uncheck()
    plot.focus()
    page.keyboard.press("Home")
    assert not tip.inner_text().startswith("ppo")  # what is hidden has no values
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_page_shows_everything_without_javascript(report: Path, open_page: Open) -> None:
    page = open_page(report, java_script_enabled=False).page
    assert page.locator("#table-main tbody tr").first.is_visible() and page.locator(f"{CURVE} svg").is_visible()
    assert page.locator(".choose").is_hidden() and page.locator(".search").first.is_hidden()
    assert page.locator("th button").count() == 0
    page.locator(f"figure:has({CURVE}) summary").click()
    assert page.locator(f"figure:has({CURVE}) details td").first.is_visible()


def test_print_has_the_answer_and_no_controls(report: Path, open_page: Open) -> None:
    page = open_page(report, color_scheme="dark").page
    page.get_by_role("checkbox", name="sft").uncheck()
    page.emulate_media(media="print")
    assert page.locator(".choose fieldset").first.is_hidden() and page.locator("nav").is_hidden()
    assert page.locator("#hidden-note").is_visible()  # a print says what its maker hid
    assert page.locator(".result").is_visible() and page.locator("#table-runs").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_page_fits_a_narrow_window_and_its_links_lead_somewhere(report: Path, open_page: Open) -> None:
    page = open_page(report, viewport={"width": 360, "height": 700}).page
    main = page.locator('[data-figure="differences"]')
    assert main.evaluate("e => e.scrollWidth <= e.clientWidth")
    drawn = main.locator("svg").evaluate("e => e.getBoundingClientRect().width / e.viewBox.baseVal.width")
    assert drawn * 8.5 > 8  # pixels of a letter
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    titles = [" ".join(text.split()) for text in page.locator("main h2").all_inner_texts()]
    links = page.locator("nav a").all_inner_texts()
    assert len(links) == len(titles) and "Missing" in links


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 360)])
def test_axe_finds_nothing_serious(report: Path, open_page: Open, scheme: str, width: int) -> None:
    page = open_page(report, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    kept, broken = axe(page)
    assert {"color-contrast", "label", "aria-allowed-role"} <= kept and broken == []


# ---------------------------------------------------------------- responses side by side


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make, asked = sweeps_in(tmp_path_factory.mktemp("responses")), {**ANALYSIS, "metrics": [], "time_to": []}
    folder = hostile(make(groups=("C0", "C1", "PTRW"), seeds=(0,), steps=8, analysis=asked))
    return reported(folder).report / "index.html"


def test_responses_are_hidden_with_their_method_and_their_seed(responses: Path, open_page: Open) -> None:
    page = open_page(responses).page
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
    responses: Path, open_page: Open, scheme: str, width: int
) -> None:
    page = open_page(responses, color_scheme=scheme, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    long = page.locator("pre.long").first
    long.focus()  # so that the arrow keys scroll it
    assert long.evaluate("e => e === document.activeElement && e.scrollHeight > e.clientHeight")
    assert axe(page, "section[aria-labelledby=responses]")[1] == []
