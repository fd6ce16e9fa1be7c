"""The rooms know of each other only what they may, and the pure modules stay pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"launcher", "trainer_ext", "analysis"}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# No file, no clock, no process: what these compute depends on their arguments alone.
PURE = {
    "trainer_ext/methods/advantage.py",
    "trainer_ext/methods/trust_region.py",
    "trainer_ext/methods/control.py",
    "trainer_ext/methods/credit.py",
    "trainer_ext/methods/preference.py",
    "trainer_ext/methods/ratio.py",
    "trainer_ext/methods/importance_weights.py",
    "trainer_ext/sampling/alpha.py",
    "trainer_ext/sampling/geometric.py",
    "trainer_ext/sampling/proposal.py",
    "trainer_ext/sampling/speculative.py",
    "trainer_ext/metrics.py",
    "launcher/planning/design.py",
    "launcher/config/identity.py",
    "analysis/stats/compare.py",
    "analysis/data/derived.py",
    "analysis/stats/exact.py",
    "analysis/stats/factorial.py",
    "analysis/stats/multiplicity.py",
    "analysis/stats/resample.py",
    "analysis/stats/scaling.py",
    "analysis/stats/dispersion.py",
    "analysis/stats/t_test.py",
    "analysis/stats/curve_summaries.py",
    "analysis/stats/trend.py",
}
IMPURE = {"os", "io", "pathlib", "time", "datetime", "random", "subprocess", "socket", "tempfile", "shutil"}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module of a file, and whether the import stands at the top level."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from ((name, id(node) in top) for name in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_what_they_may(path):
    room = path.relative_to(ROOT).parts[0]
    name = str(path.relative_to(ROOT))
    for module, top in imports(path):
        other = module.split(".")[0]
        if other not in ROOMS or other == room:
            continue
        if room == "analysis":
            assert module.startswith(("launcher.run", "launcher.files")) or module == "launcher", (
                f"{name} imports {module}"
            )
        elif room == "launcher":
            assert (
                other == "trainer_ext" and name in {"launcher/worker/worker.py", "launcher/worker/warm.py"} and not top
            ), f"{name} imports {module}: only a worker, when it runs, may"
        else:
            raise AssertionError(f"{name} imports {module}: the trainer knows no scheduler and no statistics")


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_modules_touch_nothing(name):
    tree = ast.parse((ROOT / name).read_text())
    assert not {module.split(".")[0] for module, _ in imports(ROOT / name)} & IMPURE
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input"}


def test_modules_stay_readable():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert not {name: lines for name, lines in long.items() if lines > 450}
