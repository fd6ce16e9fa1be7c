"""What fits into a Ray cluster, counted by hand, and what is refused."""

from __future__ import annotations

import pytest

from launcher.application import Shape
from launcher.errors import InvalidPlan
from launcher.schedulers.ray import placement
from tests.launcher.experiments import make

GB = 10**9
SMALL = {"CPU": 4.0, "memory": 16.0 * GB, "node:10.0.0.1": 1.0}
LARGE = {"CPU": 16.0, "GPU": 8.0, "memory": 64.0 * GB}


@pytest.mark.parametrize(
    "shape, count",
    [
        (Shape(cpus=1), 4 + 16),
        (Shape(cpus=3), 1 + 5),
        (Shape(cpus=1, memory_gb=10), 1 + 6),
        (Shape(cpus=1, devices=2), 0 + 4),
        (Shape(cpus=1, devices=16), 0),
        (Shape(cpus=4, nodes=2), 1),  # the small node holds one part only
        (Shape(cpus=2, nodes=2), 2),
        (Shape(cpus=1, nodes=3), 0),
    ],
)
def test_as_many_fit_as_a_hand_count_says(shape: Shape, count: int) -> None:
    assert placement.room(shape, [SMALL, LARGE]) == count


def test_a_run_of_several_nodes_has_its_parts_on_different_ones() -> None:
    assert placement.room(Shape(cpus=2, nodes=2), [LARGE, LARGE, LARGE]) == 12
    assert placement.room(Shape(cpus=16, nodes=2), [LARGE, LARGE, LARGE]) == 1


@pytest.mark.parametrize(
    "override, fix",
    [
        ("model.resources.cpus=99", "model.resources.cpus=16"),
        ("model.resources.devices=9", "model.resources.devices=8"),
        ("model.resources.memory_gb=65", "model.resources.memory_gb=64"),
        ("model.resources.nodes=3", "model.resources.nodes=2"),
    ],
)
def test_what_never_fits_is_refused_with_the_number_that_does(override: str, fix: str) -> None:
    planned = make("method=c0_grpo", "trainer=several", "model=tiny", "cluster=ray", override)
    with pytest.raises(InvalidPlan) as raised:
        placement.refuse(planned, list(planned.runs), [SMALL, LARGE], "the Ray cluster at auto")
    (line,) = str(raised.value).splitlines()
    assert line.startswith("conf/model/tiny.yaml: model.resources = ") and f"such as {fix}," in line
    assert "2 nodes (1 of 4 CPUs, 0 GPUs, 16.0 GB of memory; 1 of 16 CPUs, 8 GPUs, 64.0 GB of memory)" in line


def test_what_fits_is_not_refused() -> None:
    planned = make("method=c0_grpo", "model=tiny", "cluster=ray", "model.resources.cpus=16")
    placement.refuse(planned, list(planned.runs), [SMALL, LARGE], "the Ray cluster at auto")
