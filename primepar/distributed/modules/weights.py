"""Loads and saves weights of a partitioned model as safetensors with Hugging Face names.

Every rank reads and writes only its own blocks; all ranks must share one file system.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from primepar.distributed.runtime.training_state import Holder
from primepar.distributed.training.launch import World
from primepar.errors import WeightError
from primepar.files import flush, publish, reason, remove, reserve, target
from primepar.models import ModelConfig, WeightFile
from primepar.models.config_json import config_content
from primepar.models.hugging_face import SHARD_BYTES, check_config, shards, write_rest
from primepar.models.names import Source, sources
from primepar.models.tensor_file import Head, Layout
from primepar.models.weights import file_layout
from primepar.schedule.layout import Slices

DTYPES = {
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
    if Path(path).is_dir():
        check_config(Path(path), model.plan.model)
    file = WeightFile(path, model.plan.model)
    for name, parts in model.places.items():
        for part in parts:
            model.set_parameter(name, part, partial(file.read_block, name))
    return file


def is_folder(path: Path) -> bool:
    """Whether weights are saved as a Hugging Face folder, and not as one file."""
    return path.suffix != ".safetensors"


def check_place(path: Path, config: ModelConfig) -> None:
    """Check before a run that weights can be saved there.

    Raises `WeightError` for a folder that has files, and `ConfigError` for a model that a folder
    cannot describe.
    """
    if is_folder(path):
        config_content(config)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise WeightError(
                f"weights.save {path}: expected an empty folder or none, got one with files: "
                "choose another one, or a file that ends with .safetensors"
            )


def save_weights(
    path: str | Path,
    model: Holder,
    world: World,
    like: WeightFile | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write every parameter into a file, or into a folder that transformers loads.

    A collective call. Each tensor has its dtype in `like`, by default the dtype of the model. A
    folder has files of at most `shard_bytes`, `config.json`, and the tokenizer of `like`. File or
    folder gets its name after every rank has written its part. Raises `WeightError` if it cannot
    be written.
    """
    with _writing(Path(path)):
        path = target(Path(path))
    part = path.with_name(f"{path.name}.part")
    try:
        _save(path, part, model, world, like, shard_bytes)
    except BaseException:
        if world.rank == 0:
            remove(part)
        raise


def _save(
    path: Path, part: Path, model: Holder, world: World, like: WeightFile | None, shard_bytes: int
) -> None:
    config = model.plan.model
    code = next(code for code, dtype in DTYPES.items() if dtype == model.mesh.dtype)
    layout = file_layout(config, dict.fromkeys(model.places, code), like)
    files = shards(layout, shard_bytes) if is_folder(path) else {"": layout}
    heads = {part / name if name else part: Head.of(inside) for name, inside in files.items()}
    with world.agreement(f"{path} opened"), _writing(path):
        if world.rank == 0:
            if is_folder(path):
                remove(part)
                part.mkdir()
            for file, head in heads.items():
                reserve(file, head.text, head.size)
    with world.agreement(f"{path} filled"), _writing(path):
        _fill(model, layout, heads)
    with world.agreement(f"{path} named"), _writing(path):
        if world.rank == 0:
            if is_folder(path):
                origin = like.path if like is not None and like.path.is_dir() else None
                write_rest(part, config, files, origin)
                for file in part.iterdir():
                    flush(file)
            publish(part, path)


def _fill(model: Holder, layout: Layout, heads: Mapping[Path, Head]) -> None:
    """Write the blocks that this rank is responsible for."""
    places = {name: (file, head) for file, head in heads.items() for name in head.begins}
    for name in model.places:
        written, of_file = model.written_blocks(name), sources(model.plan.model, name)
        for (block_part, block), source in product(written, of_file):
            bits = _bits(block[block_part.unpadded].cpu(), layout[source.tensor][0])
            file, head = places[source.tensor]
            whole = np.memmap(file, bits.dtype, "r+", head.begins[source.tensor], source.shape)
            _put(whole, source, block_part.whole, bits)
            whole.flush()


def _bits(block: torch.Tensor, code: str) -> NDArray[Any]:
    """Return the values in a dtype of the file, as integers: NumPy has no bfloat16."""
    values = block.to(DTYPES[code])
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
