"""The boxes of a rank's state in a checkpoint: safetensors files, one or a few for each rank.

Names and shapes are those of the model, `model.<parameter>`, `exp_avg.<parameter>` and
`exp_avg_sq.<parameter>`, and do not depend on the mesh. So a checkpoint of one plan loads under
another one. In half precision `master.<parameter>` is the copy in float32.

Under local SGD the replicas differ between averages, and their moments always do. Then a
checkpoint has the tensors of every replica, `replica1.model.<parameter>`, and loads for as many
replicas. One without replicas loads for any number of them, which then begin alike.

Each file has the format of torch's own `HuggingFaceStorageWriter(save_distributed=True)`: a tensor
is one box of a tensor of the state, and the header has its offsets. torch.distributed.checkpoint
plans what a rank reads, and `HuggingFaceStorageReader` reads it. The writer keeps only one box of
each tensor, and has no checksums, so the files are written here. Torch's `FileSystemReader` loads
its metadata by pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from primepar.distributed.checkpoints.manifest import SavedFile
from primepar.distributed.modules.weights import DTYPES
from primepar.distributed.runtime.training_state import ParameterBlock, TrainingState, written
from primepar.errors import CheckpointError
from primepar.files import reserve
from primepar.models.tensor_file import Head
from primepar.operators import MASTER

_COPY = f".{MASTER}"
_KINDS = {"": "model", ".m": "exp_avg", ".v": "exp_avg_sq"}
"""Suffix of a tensor in a program -> its prefix in a checkpoint, as in torch's optimizers."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}
HeldBox = tuple[tuple[int, ...], torch.Tensor]
"""Offsets in the whole tensor, and elements."""


@dataclass(frozen=True)
class HeldBoxes:
    """A tensor of the state: its whole shape, and what this rank has of it."""

    shape: tuple[int, ...]
    boxes: Sequence[HeldBox]

    def size(self) -> torch.Size:
        """Return the shape, which torch compares with that of the checkpoint."""
        return torch.Size(self.shape)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return the boxes as torch.distributed.checkpoint takes them."""
        return [
            ChunkStorageMetadata(torch.Size(offsets), elements.shape)
            for offsets, elements in self.boxes
        ]


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


def save_part(folder: Path, rank: int, tensors: HeldTensors) -> dict[str, SavedFile]:
    """Write the boxes of one rank into a folder, and return the files by name.

    A second box of the same tensor goes into a second file. No collective call: it may run in a
    thread while the rank trains. Raises `OSError`.
    """
    folder.mkdir(exist_ok=True)  # rank 0 made it on another host perhaps
    files: dict[str, SavedFile] = {}
    for number in range(max((len(held.boxes) for held in tensors.values()), default=0)):
        file = f"rank-{rank:05d}{f'-{number + 1}' if number else ''}.safetensors"
        boxes = {name: held.boxes[number] for name, held in tensors.items()
                 if number < len(held.boxes)}  # fmt: skip
        files[file] = _write(folder / file, boxes)
    return files


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


class _Boxes(DefaultLoadPlanner):
    """Finds the boxes of `HeldBoxes` by their offsets."""

    def __init__(self, tensors: HeldTensors) -> None:
        super().__init__()
        self.boxes = {name: dict(held.boxes) for name, held in tensors.items()}

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the box that is filled."""
        return self.boxes[index.fqn][tuple(index.offset or ())]


def load_state(folder: Path, state: TrainingState, replicas: int) -> None:
    """Fill the blocks of one rank from a checkpoint of any mesh; no collective call.

    `replicas` have tensors of their own in it. Raises `CheckpointError` for what cannot be read.
    """
    reader = HuggingFaceStorageReader(str(folder))
    try:
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, is_coordinator=False)
        for suffix in state.kinds:
            tensors = to_load(state, suffix, metadata.state_dict_metadata, replicas)
            plan = create_default_local_load_plan(dict(tensors), metadata)
            reader.read_data(plan, _Boxes(tensors)).wait()
    except (SafetensorError, OSError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(
            f"{folder}: expected the tensors of a checkpoint, got {' '.join(str(error).split())}"
        ) from None


def to_load(
    state: TrainingState, suffix: str, saved: Collection[str], replicas: int
) -> HeldTensors:
    """Return the boxes of this rank's tensors of a suffix, to be filled; padding is set to zero.

    The names are those of a checkpoint that has the tensors `saved`. If runs in half precision go
    on otherwise, a parameter without a copy is read from the copy, and a copy that was not saved
    from the parameter.
    """
    replica = None if replicas == 1 else state.replica
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
