"""What a checkpoint has: its tensors as wholes, and the bytes of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from primepar.distributed.checkpoints.loading import read_whole


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by name, whole, in its dtype, as torch itself reads them."""
    read_whole(path)
    reader: Any = HuggingFaceStorageReader(str(path))
    tensors = {
        name: torch.empty(saved.size, dtype=saved.properties.dtype)
        for name, saved in reader.read_metadata().state_dict_metadata.items()
    }
    load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """`tensors_of` as arrays."""
    return {name: tensor.numpy() for name, tensor in tensors_of(path).items()}


def files_of(path: Path) -> dict[str, bytes]:
    """The bytes of every file of a checkpoint."""
    return {file.name: file.read_bytes() for file in path.iterdir()}
