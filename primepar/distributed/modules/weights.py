"""Weights of a partitioned model in safetensors under Hugging Face names, in and out.

Every rank reads and writes its own blocks and nothing else; all ranks must see one file system.
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

    Returns what it has read from, in whose types `save_weights` can write. Raises `WeightError` if
    it is cut short, or of another model.
    """
    file = WeightFile(path, model.plan.model)
    for name, parts in model.places.items():
        for part in parts:
            part.fill(model.block(name, part), partial(file.read_block, name))
    return file


def save_weights(
    path: str | Path, model: Holder, world: World, like: WeightFile | None = None
) -> None:
    """Write every parameter; a collective call.

    Each tensor has the type that it has in `like`, by default that of the model. The file gets its
    name when every rank has written its part. Raises `WeightError` where it cannot be written.
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
            for own, source in product(written(parts), sources(model.plan.model, name)):
                block = model.block(name, own)[own.own].cpu()
                bits = _bits(block, layout[source.tensor][0])
                begin = head.begins[source.tensor]
                whole = np.memmap(part, bits.dtype, "r+", begin, source.shape)
                _put(whole, source, own.whole, bits)
                whole.flush()
    with world.agreement(f"{path} named"), _writing(path):
        if world.rank == 0:
            publish(part, path)


def _bits(block: torch.Tensor, code: str) -> NDArray[Any]:
    """The values in a type of the file, as integers, for NumPy knows no bfloat16."""
    values = block.to(_DTYPES[code])
    bits: NDArray[Any] = values.view(_BITS[values.element_size()]).numpy()
    return bits


def _put(whole: NDArray[Any], source: Source, where: Slices, block: NDArray[Any]) -> None:
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
