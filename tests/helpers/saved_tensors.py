"""What a checkpoint has: its tensors as wholes, and the bytes of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from primepar.distributed.checkpoints.loading import read_whole
from primepar.distributed.checkpoints.shards import HeldBoxes, load_part


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by name, whole, in its dtype."""
    manifest = read_whole(path)
    tensors = {
        name: torch.empty(saved.shape, dtype=getattr(torch, saved.dtype))
        for name, saved in manifest.tensors.items()
    }
    held = {
        name: HeldBoxes(tuple(tensor.shape), [((0,) * tensor.ndim, tensor)])
        for name, tensor in tensors.items()
    }
    load_part(path, manifest, held)
    return tensors


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """`tensors_of` as arrays."""
    return {name: tensor.numpy() for name, tensor in tensors_of(path).items()}


def files_of(path: Path) -> dict[str, bytes]:
    """The bytes of every file of a checkpoint."""
    return {file.name: file.read_bytes() for file in path.iterdir()}
