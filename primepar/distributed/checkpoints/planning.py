"""The blocks of a rank as torch.distributed.checkpoint plans them: chunks of named tensors.

Its own planners know tensors, DTensors and ShardedTensors. A rank of ours may hold several boxes
of one tensor, in any place of it: so these planners list the chunks themselves. Everything else,
as which saved chunks overlap a held one, is torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True)
class HeldBoxes:
    """A tensor of the state: its whole shape, and (offsets, elements) of what this rank has."""

    shape: tuple[int, ...]
    boxes: Sequence[tuple[tuple[int, ...], torch.Tensor]]


HeldTensors = Mapping[str, HeldBoxes]
"""By the name of the tensor in the checkpoint."""


def chunk_of(offsets: Sequence[int], shape: Sequence[int]) -> ChunkStorageMetadata:
    """Return a box as torch describes it."""
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape))


def tensor_of(state_dict: HeldTensors, index: MetadataIndex) -> torch.Tensor:
    """Return the elements of a box, found by its offsets."""
    boxes = state_dict[index.fqn].boxes
    return next(tensor for offsets, tensor in boxes if torch.Size(offsets) == index.offset)


class SavedBoxes(DefaultSavePlanner):
    """Plans to save `HeldTensors`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """List the boxes of this rank."""
        items = [
            _write_item(name, held.shape, offsets, tensor)
            for name, held in self.state_dict.items()
            for offsets, tensor in held.boxes
        ]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """Return the elements of a box."""
        return tensor_of(self.state_dict, index)


def _write_item(
    name: str, shape: Sequence[int], offsets: Sequence[int], tensor: torch.Tensor
) -> WriteItem:
    chunk = chunk_of(offsets, tensor.shape)
    properties = TensorProperties(dtype=tensor.dtype)
    return WriteItem(
        MetadataIndex(name, torch.Size(offsets)),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, properties, torch.Size(shape)),
    )


class LoadedBoxes(DefaultLoadPlanner):
    """Plans to fill the boxes of `HeldTensors` in place."""

    def set_up_planner(
        self,
        state_dict: HeldTensors,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take the tensors as they are: torch's planner would flatten them."""
        self.state_dict = dict(state_dict)
        self.metadata = metadata
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """List what is read for each box of this rank: its part of every saved chunk."""
        assert self.metadata is not None
        items = []
        for name, held in self.state_dict.items():
            saved = self.metadata.state_dict_metadata[name]
            assert isinstance(saved, TensorStorageMetadata)
            assert saved.size == torch.Size(held.shape), name
            chunks = [chunk_of(offsets, tensor.shape) for offsets, tensor in held.boxes]
            items += create_read_items_for_chunk_list(name, saved, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the elements of a box."""
        return tensor_of(self.state_dict, index)
