"""Causes and rules: what an end is called, and what it means for the run."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import nodes
from launcher.application import application
from launcher.execution import reconciler
from launcher.run import lifecycle
from launcher.run.lifecycle import RESUMABLE, RETRYABLE, FailureKind, RunState, State
from launcher.schedulers.local import pool
from launcher.worker import worker
from tests.launcher import steps
from trainer_ext.backends.protocol import Lost, NodeLost, Stalled


class Diverged(Exception):
    """Another library's exception of a name that the application has registered."""


class StillDiverged(steps.Diverged):
    """A registered class has the kind of its subclasses."""


def wrapped(first, then):
    """An error raised while another was handled."""
    try:
        try:
            raise first
        except Exception:
            raise then  # noqa: B904 the context is what is tested
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), "exception"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "out_of_memory"),
        (ValueError("a text about being out of memory"), "exception"),
        (steps.Diverged("nan"), "diverged"),
        (StillDiverged("nan"), "diverged"),
        (Diverged("nan"), "exception"),
        (nodes.Lost("a node did not join"), "lost"),
        (steps.Preempted("asked"), "preempted"),
        (Lost("a process of the backend died"), "lost"),
        (NodeLost("a node of the run is gone"), "node_failure"),
        (Stalled("it is stopped"), "stalled"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full"),
        (OSError(errno.ENOENT, "No such file"), "exception"),
        (wrapped(OSError(errno.ENOSPC, "No space left"), RuntimeError("unexpected pos 64 vs 0")), "disk_full"),
    ],
)
def test_an_exception_has_its_cause(error, kind):
    assert lifecycle.kind_of(error, {**worker.FAILURES, **application().failures}) == kind


@pytest.mark.parametrize(
    ("code", "killed", "kind"),
    [
        (-signal.SIGKILL, False, "lost"),
        (-signal.SIGKILL, True, "out_of_memory"),
        (-signal.SIGSEGV, True, "lost"),
        (-signal.SIGTERM, False, "preempted"),
        (7, False, "lost"),
        (None, False, "lost"),
    ],
)
def test_an_exit_without_a_word_has_its_cause(code, killed, kind):
    assert lifecycle.of_exit(code, killed)[0] == kind


UNLIMITED = ("preempted", "lost", "node_failure", "revoked", "time_out", "stalled")


@given(
    kinds=st.lists(st.sampled_from(FailureKind), max_size=12),
    rules=st.dictionaries(st.sampled_from(FailureKind), st.none() | st.integers(0, 4)),
    further=st.booleans(),
)
def test_a_run_is_taken_up_as_often_as_its_rule_says(kinds, rules, further):
    state = State("0123", RunState.RUNNING)
    for kind in kinds:
        state = lifecycle.ended(state.replace(state=RunState.RUNNING), kind, "why", rules, further)
        again = state.state in RESUMABLE
        assert again != (state.state in RETRYABLE)
        ended = kinds[: sum(state.failure_counts.values())]
        assert state.failure_kind == kind and state.failure_counts[kind] == ended.count(kind)
        limit = rules.get(kind, None if kind in UNLIMITED else 0)
        allowed = limit is None or state.failure_counts[kind] <= limit
        if kind == "time_out":
            allowed = allowed and further
        assert again == (kind == "disk_full" or (allowed and kind != "cancelled"))


@pytest.mark.parametrize(
    ("kind", "rules", "found"),
    [
        ("exception", {}, "failed"),
        ("exception", {"exception": 1}, "planned"),
        ("diverged", {}, "diverged"),
        ("lost", {"lost": 1}, "lost"),
        ("lost", {"lost": 0}, "failed"),
        ("preempted", {}, "preempted"),
        ("time_out", {}, "preempted"),
        ("stalled", {"stalled": 1}, "preempted"),
        ("stalled", {"stalled": 0}, "failed"),
        ("cancelled", {"cancelled": None}, "cancelled"),
        ("disk_full", {}, "preempted"),
    ],
)
def test_each_cause_leaves_its_state(kind, rules, found):
    assert lifecycle.ended(State("0123", RunState.RUNNING), kind, "why", rules, progressed=True).state == found


# ---------------------------------------------------------------- slots


@pytest.mark.parametrize(("value", "found"), [("2,5", ["2", "5"]), ("", []), ("-1", [])])
def test_the_environment_names_the_devices(value, found):
    assert pool.visible_devices({"CUDA_VISIBLE_DEVICES": value}) == found


@pytest.mark.parametrize(
    ("wanted", "devices", "visible", "found"),
    [
        (None, 1, ["2", "5"], ["2", "5"]),
        (None, 2, ["0", "1", "2", "3", "4"], ["0,1", "2,3"]),
        (3, 1, ["0", "1"], ["0", "1", "0"]),
        (1, 1, ["0", "1"], ["0"]),
        (2, 0, ["0", "1"], ["", ""]),
        (2, 4, ["0", "1"], [None, None]),
        (None, 1, [], [None] * pool.cores()),
        (None, 0, ["0"], [""] * pool.cores()),
    ],
)
def test_a_slot_is_a_set_of_devices_or_a_core(wanted, devices, visible, found):
    assert pool.slots(wanted, devices, visible) == found


def test_a_message_of_pages_does_not_fill_every_screen_that_names_the_cause():
    assert lifecycle.described(ValueError("of this\n shape")) == "ValueError: of this shape"
    told = lifecycle.described(ValueError("[" + "1, " * 100_000))
    assert len(told) == 1000 and told.startswith("ValueError: [1, 1, ") and told.endswith("...")


# ---------------------------------------------------------------- one cause


def _reward(response: str) -> None:
    if response.startswith("{"):
        json.loads(response)
    if response.startswith("/"):
        Path(response).read_text()
    if response.startswith("from"):
        try:
            int(response)
        except ValueError as error:
            raise RuntimeError(f"the reward of {response}") from error
    if response.startswith("memory"):
        raise MemoryError(f"CUDA out of memory. Tried to allocate {response}")
    if response.startswith("tensor"):
        np.zeros(2) @ np.zeros(len(response))
    assert response.startswith("0"), f"{object()} has no number in {response!r}"


def _other_reward(response: str) -> None:
    assert response.startswith("0"), f"no number in {response!r}"


def _cause(run_id: str, response: str, reward: Callable[[str], None] = _reward) -> str:
    """The cause for the circuit breaker of a run whose reward raises."""
    with pytest.raises(Exception) as caught:
        reward(response)
    error = caught.value
    record = {"type": type(error).__name__, "message": str(error), "place": lifecycle.place(error), "traceback": ""}
    kind, message = lifecycle.kind_of(error, {}), lifecycle.described(error)
    return reconciler._cause(State(run_id, RunState.FAILED, failure_kind=kind, message=message, error=record))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("abc", "a b c"),
        ("{", "{'a': "),  # raised in the standard library
        ("/none/a", "/none/of/b"),  # a path in an OSError
        ("from one", "from two"),
        ("memory 2.5 GiB", "memory of three"),
        ("tensors", "tensor of another size"),  # raised in C++
    ],
)
def test_failures_of_one_class_at_one_place_have_one_cause_whatever_they_say(first, second):
    assert _cause("aa11", first) == _cause("bb22", second)


def test_failures_of_other_classes_or_places_have_other_causes():
    causes = [_cause("aa", "abc"), _cause("aa", "{"), _cause("aa", "/none"), _cause("aa", "abc", _other_reward)]
    assert len({*causes}) == len(causes)
    assert f"{__file__}:" in causes[1] and "in _reward" in causes[1]


@pytest.mark.parametrize(
    ("kind", "first", "second", "same"),
    [
        ("stalled", "no step for 5 s, after 2 steps; see m/runs/aa11/x", "no step for 1 min; see m/runs/bb22/x", True),
        ("lost", "signal 9 (SIGKILL)", "signal 11 (SIGSEGV)", False),
        ("lost", "aa11 exited with exit code 1", "bb22 exited with exit code 7", True),
        ("exception", "of an older version 1", "of an older version 2", True),
    ],
)
def test_without_a_place_the_kind_or_the_message_without_run_and_numbers_counts(kind, first, second, same):
    causes = {
        reconciler._cause(State(run, RunState.FAILED, failure_kind=kind, message=message))
        for run, message in (("aa11", first), ("bb22", second))
    }
    assert (len(causes) == 1) is same
