"""Every module stands in a room, every room has a rank, and imports run down the ranks; the pure modules stay pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "trainer_ext", "analysis")
#: Which rooms of one package know which of another. A module that is named in a string (a worker's training function, a
#: program for `python -m`) is known just as well as one that is imported.
BETWEEN = {
    # an application stands on the launcher, which knows it by name alone
    ("trainer_ext.application", "launcher.application"),
    ("trainer_ext.application", "launcher.config"),
    ("trainer_ext.application", "launcher.errors"),
    ("trainer_ext.application", "launcher.files"),
    ("trainer_ext.application", "launcher.planning.schema"),
    ("trainer_ext.application", "launcher.project"),
    ("trainer_ext.application", "launcher.run"),
    ("trainer_ext.application", "launcher.text"),
    ("trainer_ext.application.commands", "launcher"),  # the commands of the launcher's program
    ("trainer_ext.application", "analysis.spec"),  # the words of objections
    ("analysis.data", "launcher.errors"),  # which extra brings a package that is missing
    ("analysis.sources", "launcher.errors"),  # the same
    ("analysis", "launcher.run"),  # the format of a run's folder
    ("launcher.planning", "analysis.spec"),  # the schema of what may be asked
    ("launcher.campaign", "analysis.spec"),
}
#: What knows more than that, and why. This list may only shrink.
EXCEPTIONS = {
    ("analysis.__main__", "launcher.errors"): "the same words for an extra that is not installed",
    ("analysis.__main__", "launcher.project"): "one program has the commands of both",
    ("analysis.sources", "launcher.files"): "writes run folders, and writes their files whole as the launcher does",
    ("analysis.judging", "launcher.files"): "verdicts cost money, so they are written as durably as run folders",
    ("analysis.judging", "launcher.secrets"): "what a server says may repeat the key that it was sent",
    ("launcher.worker.hydra_job", "analysis"): "the metrics of a foreign program are in another tool's files",
    ("launcher.__main__", "analysis"): "one program has the commands of both",
    ("launcher.execution.sweep", "analysis"): "a sweep ends with its report, which also says who needs further seeds",
    ("launcher.schedulers.batch.cluster", "analysis"): "so does a detached one, as the last job of its launch",
}
# No file, no clock, no process: what these compute depends on their arguments alone.
PURE = (
    "trainer_ext.methods",
    "trainer_ext.sampling",
    "trainer_ext.metrics",
    "launcher.planning.design",
    "launcher.config.identity",
    "analysis.stats",
    "analysis.spec.metric_catalog",
)
IMPURE = {"os", "io", "pathlib", "time", "datetime", "random", "subprocess", "socket", "tempfile", "shutil"}
_NAMED = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+\.?(:\w+)?")


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def listed(package: str) -> tuple[str, ...]:
    """The rooms or modules that the docstring of a package lists."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8"))) or ""
    return tuple(re.findall(r"^    (\w+)   ", text, flags=re.MULTILINE))


#: The rooms of each package, the highest first: a folder or a file at the package's top. A module imports from its own
#: room and from those below it. Imports inside functions and under TYPE_CHECKING count like all others.
RANKS = {package: listed(package) for package in PACKAGES}


def within(module: str, place: str) -> bool:
    """Whether a module is this one, or in this package."""
    return f"{module}.".startswith(f"{place}.")


def rank(module: str) -> int:
    """The rank of a module's room in its package; 0 is the ground. Nothing imports a room's program, which ranks above
    all rooms: `python -m trainer_ext.scoring.rewards` may ask a task."""
    package, _, rest = module.partition(".")
    if rest.endswith(".__main__"):
        return len(RANKS[package])
    return RANKS[package][::-1].index(rest.partition(".")[0])


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def imports(module: str) -> Iterator[str]:
    """Every module that one imports, ours by their own names, others as they are written."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def named(module: str) -> Iterator[str]:
    """Every module of ours that one names in a string: for importlib, or as a program for `python -m`."""
    for node in nodes(module):
        if isinstance(node, ast.List):
            texts = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            yield from (str(text) for flag, text in pairwise(texts) if flag == "-m" and text in RANKS)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            yield node.value.partition(":")[0].rstrip(".")


@cache
def known(module: str) -> set[str]:
    """The modules of ours, in any package, that a module knows."""
    package = module.partition(".")[0]
    # In the analysis `analysis.figures` is a key of a configuration.
    strings = {other for other in named(module) if package != "analysis" or not within(other, "analysis")}
    return MODULES.keys() & {*imports(module), *strings} - {module, package}


def test_the_modules_that_a_package_lists_exist():
    for package in (module for module, path in MODULES.items() if path.name == "__init__.py"):
        assert {f"{package}.{name}" for name in listed(package)} <= MODULES.keys(), package


def test_every_module_stands_in_a_room():
    for module in MODULES:
        if module not in RANKS:
            rank(module)  # ValueError: no such room


def test_imports_run_down_the_ranks():
    def runs_down(module: str, other: str) -> bool:
        if within(other, module.partition(".")[0]):
            return other.split(".")[:2] == module.split(".")[:2] or rank(other) < rank(module)
        return any(within(module, one) and within(other, to) for one, to in {*BETWEEN, *EXCEPTIONS})

    arrows = [(module, other) for module in MODULES if module not in RANKS for other in known(module)]
    assert [f"{module} -> {other}" for module, other in arrows if not runs_down(module, other)] == []


def test_the_trainer_has_few_rooms_and_few_arrows_between_them():
    arrows = set()
    for module in MODULES:
        if module != "trainer_ext" and within(module, "trainer_ext") and not module.endswith(".__main__"):
            rooms = {other.split(".")[1] for other in known(module) if within(other, "trainer_ext")}
            arrows |= {(module.split(".")[1], room) for room in rooms - {module.split(".")[1]}}
    assert len(RANKS["trainer_ext"]) <= 10
    assert len(arrows) <= 25, sorted(arrows)
    assert not {(other, own) for own, other in arrows} & arrows


def test_the_launcher_knows_no_application():
    """It runs any Hydra application, so no module names this project's one, its trainer, or its algorithms."""
    words = re.compile(r"trainer_ext|\bverls?\b|verl_|\bbnto|q_?star\b|\bq\*", re.I)
    named_words = {module: words.findall(path.read_text()) for module, path in MODULES.items()}
    assert {module: found for module, found in named_words.items() if found and within(module, "launcher")} == {}


def test_no_modules_import_each_other_in_a_circle():
    graph = {module: {*imports(module)} & MODULES.keys() - {module} for module in MODULES}
    for package in RANKS:
        own = {module: others for module, others in graph.items() if within(module, package)}
        try:
            TopologicalSorter(own).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(error.args[1]))


def test_a_class_name_exists_once_in_the_analysis():
    each = (node for module in MODULES if within(module, "analysis") for node in nodes(module))
    names = Counter(node.name for node in each if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_pure_modules_touch_nothing():
    for module in (module for module in MODULES if any(within(module, place) for place in PURE)):
        assert not {other.split(".")[0] for other in imports(module)} & IMPURE, module
        assert not [node for node in nodes(module) if isinstance(node, ast.Global)], module
        functions = [node.func for node in nodes(module) if isinstance(node, ast.Call)]
        assert not {one.id for one in functions if isinstance(one, ast.Name)} & {"open", "print", "input"}, module


def test_the_statistics_are_offered_by_name():
    import analysis.stats

    for name in analysis.stats.__all__:
        assert callable(getattr(analysis.stats, name)), name
