"""Weights of a partitioned model in safetensors under Hugging Face names, in and out.

Every rank reads and writes its own blocks and nothing else; all ranks must see one file system.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import torch

from primepar.distributed.files import publish, reason, reserve
from primepar.distributed.launch import World
from primepar.distributed.model import PartitionedModel
from primepar.distributed.parameters import places
from primepar.errors import WeightError
from primepar.models import WeightFile
from primepar.models.names import Source, sources
from primepar.models.tensor_file import Array, Layout, file_head
from primepar.schedule.layout import Slices


def load_weights(path: str | Path, model: PartitionedModel) -> None:
    """Fill the model's parameters with this rank's slices of a file, an index or a folder.

    Raises `WeightError` if it is cut short, or of another model.
    """
    file = WeightFile(path, model.config)
    for name, place in places(model).items():
        place.fill(model.get_parameter(name), partial(file.read_block, name))


def save_weights(path: str | Path, model: PartitionedModel, world: World) -> None:
    """Write every parameter, bfloat16 as float32, which holds it exactly; a collective call.

    The file gets its name when every rank has written its part. Raises `WeightError` where it
    cannot be written.
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.part")
    try:
        _save(path, part, model, world)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _save(path: Path, part: Path, model: PartitionedModel, world: World) -> None:
    layout = _layout(model)
    head, sizes = file_head(layout), {name: prod(shape) for name, (_, shape) in layout.items()}
    (dtype,) = {dtype for dtype, _ in layout.values()}
    begins, at = {}, len(head)
    for name, size in sizes.items():
        begins[name], at = at, at + size * dtype.itemsize
    with world.agreement(f"{path} opened"), _writing(path):
        if world.rank == 0:
            reserve(part, head, at)
    with world.agreement(f"{path} filled"), _writing(path):
        for name, place in places(model).items():
            if place.writes:
                own = _array(model.get_parameter(name).detach().cpu())
                for source in sources(model.config, name):
                    whole = np.memmap(part, dtype, "r+", begins[source.tensor], source.shape)
                    for piece in place.pieces:
                        _put(whole, source, piece.whole, own[piece.own])
                    whole.flush()
    with world.agreement(f"{path} named"), _writing(path):
        if world.rank == 0:
            publish(part, path)


def _layout(model: PartitionedModel) -> Layout:
    dtype = _array(torch.empty(0, dtype=model.mesh.dtype)).dtype
    return {
        source.tensor: (dtype, source.shape)
        for name in model.config.parameter_shapes
        for source in sources(model.config, name)
    }


def _array(block: torch.Tensor) -> Array:
    found: Array = (block.float() if block.dtype == torch.bfloat16 else block).numpy()
    return found


def _put(whole: Array, source: Source, where: Slices, block: Array) -> None:
    """Write what a tensor of theirs takes from a block of ours."""
    slices = list(where)
    own = slices[source.dim]
    inside, slices[source.dim] = source.columns(own.start, own.stop)
    theirs = whole.T if source.transposed else whole
    theirs[tuple(slices)] = block.compress(inside, axis=source.dim)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightError(
            f"{path}: expected to write weights, got {reason(error)}: choose another "
            "--save-weights file or make room"
        ) from None
