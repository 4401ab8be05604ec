"""The boxes of a rank's state in a checkpoint: safetensors files, one or a few for each rank.

Names and shapes are those of the model, `model.<parameter>`, `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`, and do not depend on the mesh. So a checkpoint of one plan loads under
another one. In half precision `master.<parameter>` is the copy in float32.

Under local SGD the replicas differ between averages, and their moments always do. Then a
checkpoint has the tensors of every replica, `replica1.model.<parameter>`, and loads for as many
replicas. One without replicas loads for any number of them, which then begin alike.

Each file has the format of torch's own `HuggingFaceStorageWriter(save_distributed=True)`: a tensor
is one box of a tensor of the state, and the header has its offsets. So that class's reader opens a
checkpoint too. Its writer keeps only one box of each tensor, has no checksums, and is not in every
torch that runs this. Torch's `FileSystemReader` loads its metadata by pickle. So the files are
written here; torch.distributed.checkpoint plans what is read of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from primepar.distributed.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    SavedChunk,
    SavedFile,
    SavedPart,
    SavedTensor,
)
from primepar.distributed.runtime.training_state import ParameterBlock, TrainingState, written
from primepar.errors import CheckpointError
from primepar.files import reserve
from primepar.models.tensor_file import Head
from primepar.operators import MASTER

_COPY = f".{MASTER}"
_KINDS = {"": "model", ".m": "exp_avg", ".v": "exp_avg_sq"}
"""Suffix of a tensor in a program -> its prefix in a checkpoint, as in torch's optimizers."""
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
HeldBox = tuple[tuple[int, ...], torch.Tensor]
"""Offsets in the whole tensor, and elements."""


@dataclass(frozen=True)
class HeldBoxes:
    """A tensor of the state: its whole shape, and what this rank has of it."""

    shape: tuple[int, ...]
    boxes: Sequence[HeldBox]


HeldTensors = Mapping[str, HeldBoxes]
"""By the name of the tensor in the checkpoint."""


def tensor_name(name: str, suffix: str, replica: int | None) -> str:
    """Return `model.<name>`, or `replica1.exp_avg.<name>`."""
    kind = _KINDS.get(suffix, suffix.lstrip("."))
    return f"{'' if replica is None else f'replica{replica}.'}{kind}.{name}"


# Saving


def to_save(state: TrainingState, *, copied: bool) -> HeldTensors:
    """Return the boxes that this rank writes, copied to host memory or as they are."""
    replica = state.replica if state.replicas > 1 else None
    tensors: dict[str, HeldBoxes] = {}
    for name, shape in state.plan.model.parameter_shapes.items():
        for suffix in state.kinds:
            boxes = [
                _box(state, name + suffix, part) for part in written(state.places_of(name, suffix))
            ]
            if copied:
                boxes = [
                    (offsets, held.to("cpu", copy=True, memory_format=torch.contiguous_format))
                    for offsets, held in boxes
                ]
            if boxes:
                tensors[tensor_name(name, suffix, replica)] = HeldBoxes(tuple(shape), boxes)
    return tensors


def _box(state: TrainingState, name: str, part: ParameterBlock) -> HeldBox:
    return tuple(line.start for line in part.whole), state.block(name, part)[part.unpadded]


def save_part(folder: Path, rank: int, tensors: HeldTensors) -> SavedPart:
    """Write the boxes of one rank into a folder, and return what was written.

    A second box of the same tensor goes into a second file. No collective call: it may run in a
    thread while the rank trains. Raises `OSError`.
    """
    folder.mkdir(exist_ok=True)  # rank 0 made it on another host perhaps
    files: dict[str, SavedFile] = {}
    chunks: dict[str, list[SavedChunk]] = {name: [] for name in tensors}
    for number in range(max((len(held.boxes) for held in tensors.values()), default=0)):
        file = f"rank-{rank:05d}{f'-{number + 1}' if number else ''}.safetensors"
        boxes = {name: held.boxes[number] for name, held in tensors.items()
                 if number < len(held.boxes)}  # fmt: skip
        files[file] = _write(folder / file, boxes)
        for name, (offsets, elements) in boxes.items():
            chunks[name].append(SavedChunk(file, offsets, tuple(elements.shape)))
    saved = {
        name: SavedTensor(_dtype_name(held.boxes[0][1]), held.shape, tuple(chunks[name]))
        for name, held in tensors.items()
    }
    return SavedPart(saved, files)


def _dtype_name(elements: torch.Tensor) -> str:
    return str(elements.dtype).removeprefix("torch.")


def _write(path: Path, boxes: Mapping[str, HeldBox]) -> SavedFile:
    """Write a file, and flush it to disk."""
    placement = json.dumps({name: {"saved_offsets": begin} for name, (begin, _) in boxes.items()})
    head = Head.of(
        {name: (_CODES[held.dtype], tuple(held.shape)) for name, (_, held) in boxes.items()},
        {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": placement},
    )
    reserve(path, head.text, head.size)
    digest = sha256(head.text)
    with path.open("r+b") as file:
        file.seek(len(head.text))
        for _, held in boxes.values():
            elements = held.detach().cpu().contiguous()
            content = elements.reshape(-1).view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(head.size, digest.hexdigest())


# Loading


def to_load(state: TrainingState, suffix: str, saved: Collection[str]) -> HeldTensors:
    """Return the boxes of this rank's tensors of a suffix, to be filled; padding is set to zero.

    The names are those of a checkpoint that has the tensors `saved`. If runs in half precision go
    on otherwise, a parameter without a copy is read from the copy, and a copy that was not saved
    from the parameter.
    """
    first = next(iter(state.plan.model.parameter_shapes))
    replica = None if tensor_name(first, "", None) in saved else state.replica
    tensors: dict[str, HeldBoxes] = {}
    for name, shape in state.plan.model.parameter_shapes.items():
        boxes = []
        for part in state.places_of(name, suffix):
            state.block(name + suffix, part).zero_()
            if not part.padding:
                boxes.append(_box(state, name + suffix, part))
        copied, source = tensor_name(name, _COPY, replica) in saved, suffix
        if suffix == "" and copied and _COPY not in state.kinds:
            source = _COPY
        elif suffix == _COPY and not copied:
            source = ""
        if boxes:
            tensors[tensor_name(name, source, replica)] = HeldBoxes(tuple(shape), boxes)
    return tensors


def load_part(folder: Path, manifest: Manifest, tensors: HeldTensors) -> None:
    """Fill the boxes of one rank from a checkpoint of any mesh; no collective call.

    Raises `CheckpointError` if a file cannot be read.
    """
    wanted: dict[str, list[tuple[ReadItem, torch.Tensor]]] = {}
    for name, held in tensors.items():
        saved = manifest.tensors[name]
        assert saved.shape == held.shape, name
        files = {chunk.offsets: chunk.file for chunk in saved.chunks}
        boxes = dict(held.boxes)
        described = TensorStorageMetadata(
            TensorProperties(dtype=getattr(torch, saved.dtype)),
            torch.Size(saved.shape),
            [_chunk(chunk.offsets, chunk.shape) for chunk in saved.chunks],
        )
        chunks = [_chunk(offsets, elements.shape) for offsets, elements in held.boxes]
        for item in create_read_items_for_chunk_list(name, described, chunks):
            file = files[tuple(item.storage_index.offset or ())]
            box = boxes[tuple(item.dest_index.offset or ())]
            wanted.setdefault(file, []).append((item, box))
    for file, items in wanted.items():
        _read(folder / file, items)


def _chunk(offsets: Sequence[int], shape: Sequence[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape))


def _read(path: Path, items: Sequence[tuple[ReadItem, torch.Tensor]]) -> None:
    """Copy slices of the tensors of a file into boxes."""
    try:
        with safe_open(path, framework="pt") as file:
            for item, box in items:
                name = item.storage_index.fqn
                read = file.get_slice(name)[_slices(item.storage_offsets, item.lengths)]
                place = box[_slices(item.dest_offsets, item.lengths)]
                if read.shape != place.shape:
                    raise OSError(f"{name} of another shape than in {MANIFEST}")
                place.detach().copy_(read)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected a file of a checkpoint, got {' '.join(str(error).split())}"
        ) from None


def _slices(offsets: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    ends = zip(offsets, lengths, strict=True)
    return tuple(slice(begin, begin + length) for begin, length in ends)
