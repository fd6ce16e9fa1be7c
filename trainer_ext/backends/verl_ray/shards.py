"""Checkpoints of a model over several ranks: each writes the part that it holds; any number of ranks reads them.

FSDP2 gives each rank a contiguous piece of dimension 0 of every parameter: reading is a concatenation and a cut.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer_ext.backends.in_process import checkpoint
from trainer_ext.scoring import artifacts


def _part(folder: Path, rank: int, ranks: int) -> Path:
    return folder / f"rank{rank:05d}-of-{ranks:05d}"


def save(folder: Path, engine: Any, rank: int, ranks: int) -> None:
    """Write this rank's part of weights and optimizer below `folder`; all of it is on the disk afterwards."""
    part = _part(folder, rank, ranks)
    checkpoint.save(part, engine, {})
    artifacts.write_out(part)


def load(folder: Path, engine: Any, rank: int, ranks: int) -> None:
    """Restore what any number of ranks saved. ValueError: a part is missing, or the parameters are others."""
    parts = _parts(folder)
    sharded = {name for name, p in engine.module.named_parameters() if isinstance(p, DTensor)}

    def load_part(file: str) -> dict[str, Tensor]:
        if len(parts) == ranks:
            return load_file(parts[rank] / file)
        # the names in the optimizer's file are those of the parameters with one more word
        joined = _joined(parts, file, sharded)
        return {name: cut(x, rank, ranks) if _belongs(name, sharded) and x.dim() else x for name, x in joined.items()}

    weights, optimizer = load_part(checkpoint.WEIGHTS), load_part(checkpoint.OPTIMIZER)
    state = json.loads((parts[0] / checkpoint.STATE).read_text())
    checkpoint.restore(folder, engine, weights, optimizer, state["schedule"])


def whole_weights(folder: Path) -> dict[str, Tensor]:
    """The weights that all ranks saved together, by name. ValueError: a part is missing."""
    parts = _parts(folder)
    return _joined(parts, checkpoint.WEIGHTS, set(load_file(parts[0] / checkpoint.WEIGHTS)))


def _parts(folder: Path) -> list[Path]:
    parts = sorted(folder.glob("rank*-of-*"))
    written = int(parts[0].name.rpartition("-")[2]) if parts else 0
    if not parts or parts != [_part(folder, rank, written) for rank in range(written)]:
        raise ValueError(f"{folder}: parts of the checkpoint are missing; there are {[path.name for path in parts]}")
    return parts


def _belongs(name: str, parameters: set[str]) -> bool:
    return name in parameters or name.rpartition("/")[0] in parameters


def _joined(parts: list[Path], file: str, sharded: set[str]) -> dict[str, Tensor]:
    """All tensors of a file, those of sharded parameters put together."""
    tensors = [load_file(part / file) for part in parts]
    return {
        name: torch.cat([part[name] for part in tensors]) if _belongs(name, sharded) and first.dim() else first
        for name, first in tensors[0].items()
    }


def cut(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """The piece of dimension 0 that FSDP2 gives to one of `ranks` ranks."""
    parts = whole.chunk(ranks)
    return parts[rank].contiguous() if rank < len(parts) else whole[:0]
