"""Storage of torch.distributed.checkpoint as safetensors files, one or a few for each rank.

Each file has the format of torch's own `HuggingFaceStorageWriter(save_distributed=True)`: a tensor
is one box of a tensor of the state, and the header has its offsets. So that class's reader opens a
checkpoint too. Its writer keeps only one box of each tensor, has no checksums, and is not in every
torch that runs this. Torch's `FileSystemReader` loads its metadata by pickle. So the storage is
ours, the plans are torch's. A second box of the same tensor goes into a second file of its rank.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from primepar.distributed.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    SavedChunk,
    SavedFile,
    SavedPart,
    SavedTensor,
)
from primepar.distributed.checkpoints.planning import (
    HeldTensors,
    LoadedBoxes,
    SavedBoxes,
    chunk_of,
)
from primepar.errors import CheckpointError
from primepar.files import reserve
from primepar.models.tensor_file import Head

_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
# Every rank plans and writes by itself: torch warns of that in each call.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


def save_part(folder: Path, rank: int, tensors: HeldTensors) -> SavedPart:
    """Write the boxes of one rank into a folder, and return what was written.

    No collective call: it may run in a thread while the rank trains. Raises `OSError`.
    """
    writer = ShardWriter(folder, rank)
    try:
        save(dict(tensors), storage_writer=writer, planner=SavedBoxes(), no_dist=True)
    except CheckpointException as error:
        raise _cause(error) from None
    return SavedPart(writer.tensors, writer.files)


def load_part(folder: Path, manifest: Manifest, tensors: HeldTensors) -> None:
    """Fill the boxes of one rank from a checkpoint of any mesh; no collective call.

    Raises `CheckpointError` if a file cannot be read.
    """
    reader = ShardReader(folder, manifest)
    try:
        load(dict(tensors), storage_reader=reader, planner=LoadedBoxes(), no_dist=True)
    except CheckpointException as error:
        raise _cause(error) from None


def _cause(error: CheckpointException) -> BaseException:
    """Return what was raised on this rank: torch wraps it as that of one of many."""
    ((cause, _),) = error.failures.values()
    return cause


class ShardWriter(StorageWriter):
    """Writes the boxes of one rank. Raises `OSError`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.files: dict[str, SavedFile] = {}
        self.tensors: dict[str, SavedTensor] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin: the folder is given at the start."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Create the folder, which rank 0 made on another host perhaps."""
        self.folder.mkdir(exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write a file for each set of boxes of different tensors, and flush it to disk."""
        results = []
        for number, items in enumerate(_sets(plan.items)):
            name = f"rank-{self.rank:05d}{f'-{number + 1}' if number else ''}.safetensors"
            tensors = {item.index.fqn: _resolved(planner, item) for item in items}
            offsets = {item.index.fqn: tuple(item.index.offset or ()) for item in items}
            saved = _write(self.folder / name, tensors, offsets)
            self.files[name] = saved
            results += [WriteResult(item.index, saved.size, name) for item in items]
        written = Future[list[WriteResult]]()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Note the boxes of this rank; rank 0 writes those of all into the manifest."""
        places = {result.index: str(result.storage_data) for result in results[0]}
        for name, tensor in metadata.state_dict_metadata.items():
            assert isinstance(tensor, TensorStorageMetadata)
            dtype = str(tensor.properties.dtype).removeprefix("torch.")
            chunks = tuple(
                SavedChunk(
                    places[MetadataIndex(name, box.offsets)], tuple(box.offsets), tuple(box.sizes)
                )
                for box in tensor.chunks
            )
            self.tensors[name] = SavedTensor(dtype, tuple(tensor.size), chunks)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: torch shall not choose this class by a path."""
        return False


def _sets(items: Sequence[WriteItem]) -> Iterator[list[WriteItem]]:
    """Yield the first boxes of all tensors, then the second ones, and so on."""
    left: dict[str, list[WriteItem]] = {}
    for item in items:
        left.setdefault(item.index.fqn, []).append(item)
    for number in range(max(map(len, left.values()), default=0)):
        yield [boxes[number] for boxes in left.values() if number < len(boxes)]


def _resolved(planner: SavePlanner, item: WriteItem) -> torch.Tensor:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    return tensor.detach().cpu().contiguous()


def _write(
    path: Path, tensors: Mapping[str, torch.Tensor], offsets: Mapping[str, Sequence[int]]
) -> SavedFile:
    placement = json.dumps({name: {"saved_offsets": begin} for name, begin in offsets.items()})
    head = Head.of(
        {name: (_CODES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()},
        {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": placement},
    )
    reserve(path, head.text, head.size)
    digest = sha256(head.text)
    with path.open("r+b") as file:
        file.seek(len(head.text))
        for tensor in tensors.values():
            content = tensor.reshape(-1).view(torch.uint8).numpy().data
            digest.update(content)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(head.size, digest.hexdigest())


class ShardReader(StorageReader):
    """Reads boxes of a checkpoint. Raises `CheckpointError` if a file cannot be read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.files: dict[MetadataIndex, str] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin: the folder is given at the start."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the tensors of the manifest as torch describes them."""
        tensors = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, tensor.dtype)),
                torch.Size(tensor.shape),
                [chunk_of(chunk.offsets, chunk.shape) for chunk in tensor.chunks],
            )
            for name, tensor in self.manifest.tensors.items()
        }
        return Metadata(dict(tensors))

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Note which file has a box."""
        self.files = {
            MetadataIndex(name, torch.Size(chunk.offsets)): chunk.file
            for name, tensor in self.manifest.tensors.items()
            for chunk in tensor.chunks
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the slices of the plan, file after file."""
        wanted: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(self.files[item.storage_index], []).append(item)
        for name, items in wanted.items():
            self._read(self.folder / name, items, planner)
        done = Future[None]()
        done.set_result(None)
        return done

    def _read(self, path: Path, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                for item in items:
                    ends = zip(item.storage_offsets, item.lengths, strict=True)
                    slices = tuple(slice(begin, begin + length) for begin, length in ends)
                    read = file.get_slice(item.storage_index.fqn)[slices]
                    tensor = planner.resolve_tensor(item)
                    if read.shape != tensor.shape:
                        raise OSError(
                            f"{item.storage_index.fqn} of another shape than in {MANIFEST}"
                        )
                    tensor.detach().copy_(read)
                    planner.commit_tensor(item, tensor)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: expected a file of a checkpoint, got {' '.join(str(error).split())}"
            ) from None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: torch shall not choose this class by a path."""
        return False
