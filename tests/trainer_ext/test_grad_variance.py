"""actor/grad_variance: the sample variance of the micro-batches' gradients, also where ranks hold parts of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.trainer_ext.engines import on_ranks
from trainer_ext.backends.in_process.engine import GradVariance

MINI_BATCHES, MICRO, ROWS = 2, 3, 4


class Engine:
    """The calls of verl's engines in an update, on a linear model; each optimizer step moves the weights."""

    def __init__(self, module: nn.Module, ranks: int):
        self.module, self._ranks = module, ranks
        self._optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def get_data_parallel_size(self) -> int:
        return self._ranks

    def optimizer_zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def forward_step(self, micro_batch: Tensor, loss_function: Any, forward_only: bool) -> Tensor:
        return self.module(micro_batch).square().mean() / MICRO  # its share of the mini-batch's mean

    def optimizer_step(self) -> float:
        self._optimizer.step()
        return 0.0

    def update(self, mini_batch: Tensor) -> None:
        with torch.no_grad():
            self.forward_step(mini_batch[0], loss_function=None, forward_only=True)
        self.optimizer_zero_grad()
        for micro_batch in mini_batch:
            self.forward_step(micro_batch, loss_function=None, forward_only=False).backward()
        self.optimizer_step()


def model() -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(5, 3)


def data(ranks: int) -> Tensor:
    """(mini-batch, micro-batch, rank, row, feature)"""
    return torch.randn(MINI_BATCHES, MICRO, ranks, ROWS, 5, generator=torch.Generator().manual_seed(1))


def expected(ranks: int) -> float:
    """Gradient by gradient: `ranks` times the variance of the means over the ranks."""
    module, found = model(), []
    for mini_batch in data(ranks):
        means = []
        for micro_batch in mini_batch:
            module.zero_grad()
            torch.stack([module(rows).square().mean() for rows in micro_batch]).mean().backward()
            means.append(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
        found += means
        with torch.no_grad():
            step = torch.stack(means).mean(dim=0).split([p.numel() for p in module.parameters()])
            for parameter, own in zip(module.parameters(), step, strict=True):
                parameter -= 0.1 * own.view_as(parameter)
    return ranks * float(torch.stack(found).double().var(dim=0).sum())


def test_it_is_the_sample_variance_over_all_micro_batches_of_a_step_of_which_one_has_none() -> None:
    engine = Engine(model(), 1)
    measured = GradVariance(engine)
    for mini_batch in data(1)[:, :, 0]:
        engine.update(mini_batch)
    assert measured.take() == pytest.approx(expected(1), rel=1e-5)
    assert measured.take() is None  # nothing since
    engine.update(data(1)[0, :1, 0])
    assert measured.take() is None


def _rank(folder: str, rank: int, ranks: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    module = model()
    fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
    engine = Engine(module, ranks)
    measured = GradVariance(engine)
    for mini_batch in data(ranks)[:, :, rank]:
        engine.update(mini_batch)
    Path(folder, str(rank)).write_text(repr(measured.take()))
    dist.destroy_process_group()


@pytest.mark.train
def test_two_ranks_with_parts_of_the_gradients_report_that_of_one_micro_batch(tmp_path: Path) -> None:
    on_ranks(_rank, tmp_path, 120)
    for rank in range(2):
        assert float((tmp_path / str(rank)).read_text()) == pytest.approx(expected(2), rel=1e-5)
