"""Matrix products of large models on a CPU by oneDNN.

PyTorch gives products in float32 to MKL, which has no kernels with AVX-512 for processors of AMD: there, oneDNN takes
0.5 to 0.75 of the time. Small matrices stay with MKL, where a call costs less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer_ext.fits import devices

#: Elements of a weight from which on oneDNN multiplies.
LARGE = 2**18
_PAYS = 16  # products from which on packed weights save more time than packing takes


class _Product(torch.autograd.Function):
    """inputs (..., K) times the transposed weight (N, K)."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _times(inputs, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,), (inputs, weight) = gradients, ctx.saved_tensors
        of_inputs, of_weight = ctx.needs_input_grad
        rows, columns = (x.reshape(-1, x.shape[-1]) for x in (gradient, inputs))
        return (
            _times(gradient, weight.t()) if of_inputs else None,
            _times(rows.t(), columns.t()) if of_weight else None,
        )


def _times(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left (..., K) times the transposed `right` (N, K), plus the bias (N,)."""
    # The only way to oneDNN's products in float32; torch is pinned, because the operator is PyTorch's own.
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


def use(module: nn.Module) -> nn.Module:
    """Let a model's large linear layers multiply by oneDNN, if it computes in float32 on a CPU; the module itself."""
    if devices.kind() == devices.CPU and torch.backends.mkldnn.is_available():
        for layer in module.modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= LARGE and layer.weight.dtype == torch.float32:
                layer.packed, layer.forward = None, partial(_forward, layer)
    return module


@contextmanager
def packed(modules: Sequence[nn.Module], products: int) -> Iterator[None]:
    """Inside, large linear layers have copies of their weights as oneDNN orders them, if they pay for so many products.

    They save a third of the time of products with few rows, as of one token for each response. The weights must stay as
    they are, and nothing is differentiated.
    """
    inside = (layer for module in modules for layer in module.modules()) if products >= _PAYS else ()
    layers = [layer for layer in inside if hasattr(layer, "packed")]
    try:
        for layer in layers:
            layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        yield
    finally:
        for layer in layers:
            layer.packed = None


def _forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    if layer.packed is not None:
        return _times(inputs, layer.packed, layer.bias)
    product: Tensor = _Product.apply(inputs, layer.weight)
    return product if layer.bias is None else product + layer.bias
