"""What holds for every test."""

from __future__ import annotations

import ast
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and no limit of their time: whether a test passes depends on the code alone, and not
# on luck or on what else the machine does. `--hypothesis-profile=default` looks for new examples.
settings.register_profile(
    "tests", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

# A shell has what it starts in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: The hooks that skip a test whose need is missing, and demand those of `--require`; the golden wording.
pytest_plugins = ["tests.needs", "tests.wording"]


def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of a plain run in main memory, if it is large enough and programs may start from there.

    Plans and runs are written durably, so the tests would wait for the disk half of their time.
    """
    with suppress(OSError):
        memory = os.statvfs("/dev/shm")
        large = memory.f_bavail * memory.f_frsize >= 4 << 30
        if large and not memory.f_flag & os.ST_NOEXEC and not config.getoption("--require"):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Words and short code name a case as they are written: pytest would number them."""
    if isinstance(val, list | tuple) and val and all(isinstance(word, str) for word in val):
        text = " ".join(val)
    elif isinstance(val, FunctionType) and val.__name__ == "<lambda>":
        text = _lambdas(val.__code__.co_filename)[min(p[:1] + p[2:3] for p in val.__code__.co_positions() if p[2])]
    else:
        return None
    return text if len(text) <= 80 and text.isprintable() and text.isascii() else None


@cache
def _lambdas(file: str) -> dict[tuple[int, int], str]:
    """The bodies of a file's lambdas, by the places where they begin."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Lambda))
    return {(body.lineno, body.col_offset): ast.unparse(body) for body in bodies}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what may take longest, so that at the end no process waits for another."""

    def limit(item: pytest.Item) -> float:
        own = item.get_closest_marker("timeout")
        return own.args[0] if own else 0

    items.sort(key=limit, reverse=True)


# The imports make no garbage, but looking for it among all that they make is a tenth of their time.
gc.disable()


def pytest_collection_finish() -> None:
    """What the imports made stays: a collection of garbage that looks at it takes 0.4 s, and statsmodels asks for one
    with every call."""
    gc.freeze()
    gc.set_threshold(60_000, 20, 50)  # reports make many objects and little garbage; the usual 700 cost a tenth
    gc.enable()


@pytest.fixture(scope="module")
def no_progress_bars() -> Iterator[None]:
    """transformers draws no bar for each file that it reads."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()
