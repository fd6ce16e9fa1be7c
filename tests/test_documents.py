"""The documents: their links lead somewhere, their examples import what exists, and the index lists every page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from launcher.__main__ import all_commands

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "multirun/README.md", *sorted((ROOT / "docs").glob("*.md"))]
WIDTH = 120


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code, tables and comments, with their numbers."""
    text = re.sub(r"```.*?```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page.read_text(), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number, line


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not target.startswith("http"):
                path, _, anchor = target.partition("#")
                file = (page.parent / path).resolve() if path else page
                assert file.exists(), f"{page}: {target}"
                assert not anchor or anchor in anchors(file), f"{page}: {target}"


def test_prose_fits_the_line():
    assert [(page, number) for page in PAGES for number, line in prose(page) if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_in_python_import_what_exists(page):
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        for node in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)):
            for name in (alias.name for alias in node.names):
                assert hasattr(import_module(node.module), name) or import_module(f"{node.module}.{name}")


def test_the_index_lists_every_page():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= listed


@pytest.mark.parametrize(("page", "folder"), [("experiments", "experiment"), ("methods", "method")])
def test_every_shipped_file_is_in_the_table(page, folder):
    rows = [line for line in (ROOT / f"docs/{page}.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {path.stem for path in (ROOT / "conf" / folder).glob("*.yaml")}


def test_the_page_on_commands_has_a_section_for_each_or_a_link():
    rows = re.findall(r"^\| \[`(\w+)`\]", (ROOT / "docs/commands.md").read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(all_commands())
