"""Loads and saves weights of a partitioned model as safetensors with Hugging Face names.

Every rank reads and writes only its own blocks; all ranks must share one file system.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from primepar.distributed.runtime.training_state import Holder, written
from primepar.distributed.training.launch import World
from primepar.errors import WeightError
from primepar.files import publish, reason, reserve
from primepar.models import WeightFile
from primepar.models.names import Source, sources
from primepar.models.tensor_file import Head
from primepar.models.weights import file_layout
from primepar.schedule.layout import Slices

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def load_weights(path: str | Path, model: Holder) -> WeightFile:
    """Fill this rank's blocks of the parameters from a file, an index or a folder.

    Returns the file; `save_weights` can write with its dtypes. Raises `WeightError` if it is
    truncated, or of another model.
    """
    file = WeightFile(path, model.plan.model)
    for name, parts in model.places.items():
        for part in parts:
            model.set_parameter(name, part, partial(file.read_block, name))
    return file


def save_weights(
    path: str | Path, model: Holder, world: World, like: WeightFile | None = None
) -> None:
    """Write every parameter; a collective call.

    Each tensor has its dtype in `like`, by default the dtype of the model. The file gets its final
    name after every rank has written its part. Raises `WeightError` if it cannot be written.
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.part")
    try:
        _save(path, part, model, world, like)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _save(path: Path, part: Path, model: Holder, world: World, like: WeightFile | None) -> None:
    code = next(code for code, dtype in _DTYPES.items() if dtype == model.mesh.dtype)
    layout = file_layout(model.plan.model, dict.fromkeys(model.places, code), like)
    head = Head.of(layout)
    with world.agreement(f"{path} opened"), _writing(path):
        if world.rank == 0:
            reserve(part, head.text, head.size)
    with world.agreement(f"{path} filled"), _writing(path):
        for name, parts in model.places.items():
            for part_block, source in product(written(parts), sources(model.plan.model, name)):
                block = model.block(name, part_block)[part_block.unpadded].cpu()
                bits = _bits(block, layout[source.tensor][0])
                begin = head.begins[source.tensor]
                whole = np.memmap(part, bits.dtype, "r+", begin, source.shape)
                _put(whole, source, part_block.whole, bits)
                whole.flush()
    with world.agreement(f"{path} named"), _writing(path):
        if world.rank == 0:
            publish(part, path)


def _bits(block: torch.Tensor, code: str) -> NDArray[Any]:
    """Return the values in a dtype of the file, as integers: NumPy has no bfloat16."""
    values = block.to(_DTYPES[code])
    bits: NDArray[Any] = values.view(_BITS[values.element_size()]).numpy()
    return bits


def _put(whole: NDArray[Any], source: Source, where: Slices, block: NDArray[Any]) -> None:
    """Write the elements of our block that belong to a tensor of the file."""
    slices = list(where)
    columns = slices[source.dim]
    inside, slices[source.dim] = source.columns(columns.start, columns.stop)
    file_tensor = whole.T if source.transposed else whole
    file_tensor[tuple(slices)] = block.compress(inside, axis=source.dim)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightError(
            f"{path}: expected to write weights, got {reason(error)}: choose another "
            "file for weights.save or make room"
        ) from None
