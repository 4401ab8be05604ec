"""State of a rank between steps: its blocks of the parameters and of their moments, by name.

A block has the name that it has in the program of a step, `blocks.0.qkv.weight[0,1]`. Its moments
under AdamW are `blocks.0.qkv.weight.m[0,1]` and `blocks.0.qkv.weight.v[0,1]`; SGD has none. In half
precision `blocks.0.qkv.weight.master[0,1]` is its copy in float32, from which it is rounded after
every update. Moments and copies have the mesh's dtype of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch

from primepar.distributed.runtime.mesh import Mesh
from primepar.models import initial_parameter
from primepar.operators import MASTER, Optimizer, parameter_views, state_suffixes, state_views
from primepar.operators.builder import View
from primepar.plan import Plan
from primepar.schedule.layout import Slices
from primepar.schedule.meaning import Box


@dataclass(frozen=True)
class ParameterBlock:
    """One block of a parameter on this rank.

    `index` is the end of its name, `[0,1]`. `box` is its place in the parameter with a padded
    vocabulary, `whole` the same without padding, both in elements. `writes` is true if no lower
    rank has the block: then this rank writes it to files.
    """

    index: str
    box: Box
    whole: Slices
    writes: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block."""
        return tuple(end - first for first, end in self.box)

    @property
    def unpadded(self) -> Slices:
        """The slices of the block that are not padding."""
        return tuple(slice(line.stop - line.start) for line in self.whole)

    @property
    def padding(self) -> bool:
        """Whether the block is all padding."""
        return any(line.start == line.stop for line in self.whole)

    def is_in(self, other: ParameterBlock) -> bool:
        """Return whether this is a part of another block, or the whole of it."""
        sides = zip(self.box, other.box, strict=True)
        return all(low <= first and end <= high for (first, end), (low, high) in sides)

    def fill(self, block: torch.Tensor, read: Callable[[Slices], Any]) -> None:
        """Set the block to what `read` returns for its slices of the whole; padding is zero."""
        block.zero_()
        if not self.padding:
            block[self.unpadded] = torch.as_tensor(read(self.whole)).to(block)


Places = dict[str, tuple[ParameterBlock, ...]]
"""Parameter name -> its blocks on a rank."""


def places(plan: Plan, rank: int, first: int = 0) -> Places:
    """Return the blocks of every parameter that a rank holds.

    It `writes` those that no lower rank has; only ranks from `first` on count.
    """
    return _blocks(plan, parameter_views(plan), rank, first)


def shards(plan: Plan, rank: int) -> Places:
    """Return the blocks of every moment that a rank holds: shards, if the plan has them."""
    return _blocks(plan, state_views(plan), rank)


def _blocks(plan: Plan, views: Mapping[str, View], rank: int, first: int = 0) -> Places:
    shapes, blocks = plan.model.parameter_shapes, {}
    for name, view in views.items():
        lower = {index for held in view.held[first:rank] for index in held}
        blocks[name] = tuple(
            _part(view.cuts, index, shapes[name], index not in lower)
            for index in sorted(view.held[rank])
        )
    return blocks


def _part(
    cuts: Sequence[Sequence[int]], index: tuple[int, ...], shape: Sequence[int], writes: bool
) -> ParameterBlock:
    box = tuple((line[number], line[number + 1]) for line, number in zip(cuts, index, strict=True))
    whole = tuple(
        slice(min(first, size), min(end, size))
        for (first, end), size in zip(box, shape, strict=True)
    )
    return ParameterBlock(f"[{','.join(map(str, index))}]", box, whole, writes)


def written(parts: Sequence[ParameterBlock]) -> list[ParameterBlock]:
    """Return the blocks that this rank writes: on no lower rank, and not all padding."""
    return [part for part in parts if part.writes and not part.padding]


class Holder(Protocol):
    """An object that holds this rank's blocks of the parameters of a plan."""

    plan: Plan
    mesh: Mesh
    places: Places

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """Return a block of a parameter."""
        ...

    def set_parameter(self, name: str, part: ParameterBlock, read: Callable[[Slices], Any]) -> None:
        """Set a block of a parameter to what `read` returns for its slices; padding is zero."""
        ...

    def written_blocks(self, name: str) -> Iterator[tuple[ParameterBlock, torch.Tensor]]:
        """Yield the blocks of a parameter that this rank writes to files."""
        ...


class TrainingState:
    """The blocks of one rank between steps.

    Parameters start as `initial_parameter` of the seed, moments at zero. With `masters` there is a
    copy of every parameter too. A vocabulary that the
    plan does not divide evenly is padded with zeros. Raises `PlanError` if the mesh has another
    number of devices than the plan.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        seed: int = 0,
        optimizer: Optimizer = "adamw",
        replicas: int = 1,
        masters: bool = False,
    ) -> None:
        plan.check_ranks(mesh.ranks)
        self.plan, self.mesh, self.seed, self.replicas = plan, mesh, seed, replicas
        self.kinds = state_suffixes(optimizer, masters)
        """The suffixes of a parameter's names: of itself, of its copy, and of its moments."""
        self.places = places(plan, mesh.rank)
        size = mesh.ranks // replicas
        self.replica = mesh.rank // size
        """The replica that this rank is in; between averages replicas have states of their own."""
        alone = replicas == 1
        self.places_in_replica = (
            self.places if alone else places(plan, mesh.rank, self.replica * size)
        )
        """The same blocks; this rank `writes` one if no lower rank of its replica has it."""
        self._shards = shards(plan, mesh.rank) if plan.sharded_optimizer else None
        self.blocks: dict[str, torch.Tensor] = {}
        self.host: dict[str, torch.Tensor] = {}
        """The blocks in host memory: all of them, if the mesh has a limit of device memory."""
        for name, kind in product(self.places, self.kinds):
            for part in self.places_of(name, kind):
                self._add(name + kind + part.index, part.shape, self.dtype(kind))
        for name, parts in self.places.items():
            whole = initial_value(plan, name, seed) if parts else None
            for part in parts:
                assert whole is not None
                self.set_parameter(name, part, whole.__getitem__)

    def dtype(self, kind: str) -> torch.dtype:
        """Return the dtype of the tensors of a suffix: that of sums for all but the parameters."""
        return self.mesh.wide_dtype if kind else self.mesh.dtype

    def set_parameter(self, name: str, part: ParameterBlock, read: Callable[[Slices], Any]) -> None:
        """Set a block of a parameter, and of its copy, to what `read` returns for its slices."""
        part.fill(self.block(name, part), read)
        kind = f".{MASTER}"
        for copy in self.places_of(name, kind) if kind in self.kinds else ():
            if copy.is_in(part):
                copy.fill(self.block(name + kind, copy), read)

    def written_blocks(self, name: str) -> Iterator[tuple[ParameterBlock, torch.Tensor]]:
        """Yield the blocks of a parameter that this rank writes to files: of its copy, if any."""
        kind = f".{MASTER}" if f".{MASTER}" in self.kinds else ""
        places = self.places_of(name, kind) if self.replicas == 1 else self.places[name]
        for part in written(places):
            yield part, self.block(name + kind, part)

    def _add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        mesh = self.mesh
        if mesh.limit is None:
            self.blocks[name] = torch.zeros(shape, device=mesh.device, dtype=dtype)
        else:
            self.host[name] = mesh.host.zeros(shape, dtype)

    def places_of(self, name: str, suffix: str) -> tuple[ParameterBlock, ...]:
        """Return the blocks of `<name><suffix>` on this rank, as those of one replica.

        The suffix is one of `kinds`. This rank `writes` a block if no lower rank of its replica has
        it. Blocks of a parameter, and of its moments if the plan shards the optimizer, differ.
        """
        assert suffix in self.kinds
        if suffix and self._shards is not None:
            return self._shards[name]
        return self.places_in_replica[name]

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """Return a block of a parameter, copy or moment, from the device or from the host."""
        held = self.blocks if self.mesh.limit is None else self.host
        return held[name + part.index]


def initial_value(plan: Plan, name: str, seed: int) -> torch.Tensor:
    """Return a full parameter before training."""
    return torch.from_numpy(np.asarray(initial_parameter(plan.model, name, seed)))


def side_by_side(boxes: Sequence[Box]) -> tuple[tuple[int, ...], list[Slices]]:
    """Concatenate blocks in the order of their slices: the shape, and the slices of each block."""
    shape, starts = [], []
    for along in zip(*boxes, strict=True):
        end, start = 0, {}
        for first, last in sorted(set(along)):
            start[first], end = end, end + last - first
        shape.append(end)
        starts.append(start)
    places_of_blocks = [
        tuple(
            slice(start[first], start[first] + end - first)
            for start, (first, end) in zip(starts, box, strict=True)
        )
        for box in boxes
    ]
    return tuple(shape), places_of_blocks
