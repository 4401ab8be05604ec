"""What a rank keeps between steps: its blocks of the parameters and of AdamW's moments, by name.

A block is called as in the program of a step, `blocks.0.qkv.weight[0,1]`, and so are the moments
of it, `blocks.0.qkv.weight.m[0,1]` and `blocks.0.qkv.weight.v[0,1]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from primepar.distributed.runtime.mesh import Mesh
from primepar.models import initial_parameter
from primepar.operators import parameter_views
from primepar.plan import Plan
from primepar.schedule.layout import Slices
from primepar.schedule.meaning import Box

MOMENTS = ("m", "v")
"""What AdamW keeps for a parameter, `<name>.m` and `<name>.v`."""


@dataclass(frozen=True)
class ParameterBlock:
    """One block of a parameter on this rank.

    `index` ends its name, `[0,1]`. `box` is where it lies in the parameter with a padded
    vocabulary, `whole` without the padding. `writes` says that no lower rank has the block.
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
    def own(self) -> Slices:
        """What of the block is no padding."""
        return tuple(slice(at.stop - at.start) for at in self.whole)

    @property
    def padding(self) -> bool:
        """Whether it is all padding."""
        return any(at.start == at.stop for at in self.whole)

    def fill(self, block: torch.Tensor, read: Callable[[Slices], Any]) -> None:
        """Set the block from what `read` gives of the whole; padding becomes zero."""
        block.zero_()
        if not self.padding:
            block[self.own] = torch.as_tensor(read(self.whole)).to(block)


Places = dict[str, tuple[ParameterBlock, ...]]
"""Parameter name -> the blocks of it on a rank."""


def places(plan: Plan, rank: int) -> Places:
    """Where the blocks of a rank lie, of every parameter."""
    shapes, found = plan.model.parameter_shapes, {}
    for name, view in parameter_views(plan).items():
        lower = {index for held in view.held[:rank] for index in held}
        found[name] = tuple(
            _part(view.cuts, index, shapes[name], index not in lower)
            for index in sorted(view.held[rank])
        )
    return found


def _part(
    cuts: Sequence[Sequence[int]], index: tuple[int, ...], shape: Sequence[int], writes: bool
) -> ParameterBlock:
    box = tuple((line[at], line[at + 1]) for line, at in zip(cuts, index, strict=True))
    whole = tuple(
        slice(min(first, size), min(end, size))
        for (first, end), size in zip(box, shape, strict=True)
    )
    return ParameterBlock(f"[{','.join(map(str, index))}]", box, whole, writes)


def written(parts: Sequence[ParameterBlock]) -> list[ParameterBlock]:
    """Those that this rank is to write: no lower rank has them, and they are not all padding."""
    return [part for part in parts if part.writes and not part.padding]


class Holder(Protocol):
    """What has this rank's blocks of the parameters of a plan."""

    plan: Plan
    mesh: Mesh
    places: Places

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """A block of a parameter, to be read or filled."""
        ...


class TrainingState:
    """The blocks of one rank between steps.

    Parameters begin at `initial_parameter` of the seed, moments at zero; a vocabulary that the
    plan's cuts do not divide is padded with zeros. Raises `PlanError` if the mesh has another
    number of devices.
    """

    def __init__(self, plan: Plan, mesh: Mesh, seed: int = 0) -> None:
        plan.check_ranks(mesh.ranks)
        self.plan, self.mesh, self.seed = plan, mesh, seed
        self.places = places(plan, mesh.rank)
        self.blocks: dict[str, torch.Tensor] = {}
        for name, parts in self.places.items():
            whole = initial_value(plan, name, seed)
            for part in parts:
                for own in (name, *(f"{name}.{moment}" for moment in MOMENTS)):
                    self.blocks[own + part.index] = torch.zeros(
                        part.shape, device=mesh.device, dtype=mesh.dtype
                    )
                part.fill(self.block(name, part), whole.__getitem__)

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        """A block of a parameter or moment."""
        return self.blocks[name + part.index]


def initial_value(plan: Plan, name: str, seed: int) -> torch.Tensor:
    """A whole parameter before training."""
    return torch.from_numpy(np.asarray(initial_parameter(plan.model, name, seed)))


def side_by_side(boxes: Sequence[Box]) -> tuple[tuple[int, ...], list[Slices]]:
    """Blocks put together in the order of their slices: the shape, and where each one lies."""
    shape, starts = [], []
    for along in zip(*boxes, strict=True):
        end, start = 0, {}
        for first, last in sorted(set(along)):
            start[first], end = end, end + last - first
        shape.append(end)
        starts.append(start)
    found = [
        tuple(
            slice(start[first], start[first] + end - first)
            for start, (first, end) in zip(starts, box, strict=True)
        )
        for box in boxes
    ]
    return tuple(shape), found
