"""Every module stands in a room, every room has a rank, and imports run down the ranks; the pure modules stay pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The rooms of each package, the highest first: a folder or a file at the package's top. A module imports from its own
#: room and from those below it. Imports inside functions and under TYPE_CHECKING count like all others.
RANKS = {
    "launcher": (
        "__main__",
        "commands",
        "campaign",
        "execution",
        "schedulers",
        "planning",
        "worker",
        "status",
        "tracking",
        "config",
        "run",
        "nodes",
        "errors",
        "secrets",
        "output",
        "files",
        "text",
        "project",
    ),
    "trainer_ext": (
        "train",
        "backends",
        "plugin",
        "vllm_qstar",
        "methods",
        "sampling",
        "scores",
        "bertscore",
        "evaluation",
        "tasks",
        "reward_models",
        "artifacts",
        "price",
        "rank_memory",
        "chat",
        "sizes",
        "devices",
        "memory",
        "architectures",
        "continuing",
        "metrics",
        "health",
        "unit_tests",
        "rewards",
        "texts",
        "sandbox",
        "registry",
    ),
    "analysis": (
        "__main__",
        "report",
        "sections",
        "figures",
        "tables",
        "findings",
        "judging",
        "data",
        "sources",
        "spec",
        "stats",
        "numbers",
    ),
}
#: Which rooms of one package know which of another. A module that is named in a string (a worker's training function, a
#: program for `python -m`) is known just as well as one that is imported.
BETWEEN = {
    ("launcher.worker", "trainer_ext"),  # the run itself
    ("analysis", "launcher.run"),  # the format of a run's folder
    ("launcher.planning", "analysis.spec"),  # the schema of what may be asked
}
#: What knows more than that, and why. This list may only shrink.
EXCEPTIONS = {
    ("analysis.__main__", "launcher"): "power is asked before the launch, so it composes the plan as a launch does",
    ("analysis.sources", "launcher.files"): "writes run folders, and writes their files whole as the launcher does",
    ("analysis.judging", "launcher.files"): "verdicts cost money, so they are written as durably as run folders",
    ("analysis.judging", "launcher.secrets"): "what a server says may repeat the key that it was sent",
    ("launcher.execution.sweep", "analysis"): "a sweep ends with its report, which is a program of its own",
    ("launcher.execution.looks", "analysis"): "the same program says which comparisons need further seeds",
    ("launcher.schedulers.slurm.task", "analysis"): "so does one that nobody waits for, as the last job of its launch",
}
# No file, no clock, no process: what these compute depends on their arguments alone.
PURE = (
    "trainer_ext.methods",
    "trainer_ext.sampling",
    "trainer_ext.metrics",
    "trainer_ext.continuing",
    "launcher.planning.design",
    "launcher.config.identity",
    "analysis.stats",
    "analysis.spec.metric_catalog",
)
IMPURE = {"os", "io", "pathlib", "time", "datetime", "random", "subprocess", "socket", "tempfile", "shutil"}
_NAMED = re.compile(rf"({'|'.join(RANKS)})(\.\w+)+\.?(:\w+)?")


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in RANKS for path in sorted((ROOT / package).rglob("*.py"))}


def within(module: str, place: str) -> bool:
    """Whether a module is this one, or in this package."""
    return f"{module}.".startswith(f"{place}.")


def rank(module: str) -> int:
    """The rank of a module's room in its package; 0 is the ground. Nothing imports a room's program, which ranks above
    all rooms: `python -m trainer_ext.rewards` may ask a task."""
    package, _, rest = module.partition(".")
    if rest.endswith(".__main__"):
        return len(RANKS[package])
    return RANKS[package][::-1].index(rest.partition(".")[0])


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, ours by their own names, others as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def named(tree: ast.AST) -> Iterator[str]:
    """Every module of ours that a file names in a string: for importlib, or as a program for `python -m`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List):
            texts = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            yield from (str(text) for flag, text in pairwise(texts) if flag == "-m" and text in RANKS)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            module = node.value.partition(":")[0].rstrip(".")
            if module in MODULES:
                yield module


def known(module: str) -> set[str]:
    """The modules of ours, in any package, that a module knows."""
    tree = ast.parse(MODULES[module].read_text())
    package = module.partition(".")[0]
    # In the analysis `analysis.figures` is a key of a configuration.
    strings = {other for other in named(tree) if package != "analysis" or not within(other, "analysis")}
    return {other for other in {*imports(tree), *strings} if other in MODULES and other not in (module, package)}


@pytest.mark.parametrize("package", RANKS)
def test_the_page_on_the_code_lists_the_rooms_by_rank(package):
    page = (ROOT / "docs/code.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {package}: .*?(?=^## )", page, flags=re.DOTALL | re.MULTILINE)
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == RANKS[package]


@pytest.mark.parametrize("package", [module for module, path in MODULES.items() if path.name == "__init__.py"])
def test_a_package_lists_its_rooms_or_modules(package):
    """A package of rooms lists all of them by rank. Other lists may be incomplete, but name only what exists."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8"))) or ""
    listed = re.findall(r"^    (\w+)   ", text, flags=re.MULTILINE)
    if package in RANKS:
        assert tuple(listed) == RANKS[package]
    assert {f"{package}.{name}" for name in listed} <= MODULES.keys()


def test_every_module_stands_in_a_room():
    for module in MODULES:
        if module not in RANKS:
            rank(module)  # ValueError: no such room


@pytest.mark.parametrize("module", [module for module in MODULES if module not in RANKS])
def test_imports_run_down_the_ranks(module):
    package, own = module.partition(".")[0], module.split(".")[:2]
    for other in sorted(known(module)):
        if within(other, package):
            assert other.split(".")[:2] == own or rank(other) < rank(module), f"{module} -> {other} runs up"
        elif not any(within(module, one) and within(other, to) for one, to in EXCEPTIONS):
            assert any(within(module, one) and within(other, to) for one, to in BETWEEN), f"{module} -> {other}"


@pytest.mark.parametrize("package", RANKS)
def test_no_modules_import_each_other_in_a_circle(package):
    graph = {
        module: {other for other in imports(ast.parse(path.read_text())) if other in MODULES and other != module}
        for module, path in MODULES.items()
        if within(module, package)
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_module_takes_the_name_of_what_its_package_imported():
    """Importing `analysis.report.page` binds `page` in `analysis.report`, whatever stood there under that name."""
    for package in (module for module, path in MODULES.items() if path.name == "__init__.py"):
        for node in ast.walk(ast.parse(MODULES[package].read_text())):
            if isinstance(node, ast.ImportFrom) and node.module not in (package, None):
                taken = {f"{package}.{alias.asname or alias.name}" for alias in node.names} & set(MODULES)
                assert taken <= {node.module}, f"{package}: {', '.join(taken)}"


def test_a_class_name_exists_once_in_the_analysis():
    names = Counter(
        node.name
        for module, path in MODULES.items()
        if within(module, "analysis")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_exception_is_one():
    for one, to in EXCEPTIONS:
        assert any(within(other, to) for module in MODULES if within(module, one) for other in _abroad(module)), (
            one,
            to,
        )


def _abroad(module: str) -> set[str]:
    return {other for other in known(module) if other.partition(".")[0] != module.partition(".")[0]}


@pytest.mark.parametrize("module", [module for module in MODULES if any(within(module, place) for place in PURE)])
def test_pure_modules_touch_nothing(module):
    tree = ast.parse(MODULES[module].read_text())
    assert not {other.split(".")[0] for other in imports(tree)} & IMPURE
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input"}


def test_the_statistics_are_offered_by_name():
    import analysis.stats

    for name in analysis.stats.__all__:
        assert callable(getattr(analysis.stats, name)), name
