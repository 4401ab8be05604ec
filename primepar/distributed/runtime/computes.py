"""Compiles sub-operators and additions to closures.

A product of a linear operator adds to a block; any other kernel replaces one.

The last bits of a product depend on strides and on alignment, as a BLAS chooses its order of
summation by them. Which blocks share memory depends on the mode of a run: under a limit of device
memory none do. So every compute gets its blocks in the standard layout, and all modes call the same
kernels on the same operands. Example: `cut c -> (a, b)` by columns makes `a` and `b` views of `c`,
and under a limit copies; a product of `a` gets a copy in either case.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.kernels import (
    IN_PLACE,
    KERNELS,
    UNCHANGED,
    WITHOUT_SETTINGS,
    Kernel,
)
from primepar.distributed.kernels.common import wide_room
from primepar.distributed.kernels.linear import as_matrix, operands, product
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.memory import Buffer, Slot, View
from primepar.distributed.runtime.memory_actions import Release, copying
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.messages import Action, Frame
from primepar.distributed.runtime.scales import Factor, factor_of
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ProgramError
from primepar.operators import Site, StepSettings, site_of
from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute

Combine = Callable[[torch.Tensor, torch.Tensor], object]
COMBINE: dict[str, Combine] = {
    "sum": torch.Tensor.add_,
    "max": lambda into, term: torch.maximum(into, term, out=into),
    "min": lambda into, term: torch.minimum(into, term, out=into),
}


def _same(block: torch.Tensor) -> torch.Tensor:
    return block


class StandardBlocks:
    """Gives the blocks of one compute in the standard layout; copies go `before` and `after` it."""

    def __init__(self, places: MemoryPlaces) -> None:
        self._places = places
        self.before: list[Action] = []
        self.after: list[Action] = []

    def read(self, name: str, view: View | None = None) -> Slot:
        """Return a block that is read."""
        if self._places.here[name].has_standard_layout(name):
            return self._places.slot(name, view)
        buffer, copy = self.scratch(name)
        self.before.append(copying(copy, self._places.slot(name)))
        return buffer.attach([None], view or _same)

    def written(self, name: str, view: View | None = None, *, begun: bool) -> Slot:
        """Return a block that is written, or changed if it is `begun`."""
        self.before += self._places.room(name, keep=begun)
        block = self._places.slot(name)
        if self._places.here[name].has_standard_layout(name):
            return self._places.slot(name, view)
        buffer, copy = self.scratch(name)
        if begun:
            self.before.append(copying(copy, block))
        self.after.insert(0, copying(block, copy))
        return buffer.attach([None], view or _same)

    def scratch(self, name: str) -> tuple[Buffer, Slot]:
        """Return memory like that of a block, for this compute."""
        buffer, allocated = self._places.scratch(self._places.shapes.shape(name), name)
        self.before += allocated
        self.after.append(Release(buffer))
        return buffer, buffer.attach([None], _same)


class Computes:
    """Compiles the computes of one program."""

    def __init__(
        self,
        shapes: Shapes,
        places: MemoryPlaces,
        settings: StepSettings | None,
        watch: Watch | None,
    ) -> None:
        self.shapes, self.places, self.settings = shapes, places, settings
        self._watch = watch

    def actions(self, node: Compute, place: str) -> list[Action]:
        """Return the actions that run a compute.

        Raises `ProgramError` for a phase without a kernel, or a kernel without its settings.
        """
        if node.phase is None:
            return self._addition(node)
        phase = self.shapes.meaning.phases[node.phase]
        if phase.kernel not in KERNELS:
            raise ProgramError(
                f"{place}: expected a kernel for phase {node.phase}, got "
                f"{'none' if phase.kernel is None else repr(phase.kernel)}: "
                f"name one of those of primepar.distributed.kernels in its signature"
            )
        if len(node.reads) != len(phase.reads):
            raise ProgramError(
                f"{place}: expected {len(phase.reads)} reads for phase {node.phase}, "
                f"got {len(node.reads)}"
            )
        site = site_of(self.shapes.meaning, node, self.settings)
        if self.shapes.is_product(node.phase):
            return self._product(node, site)
        if self.settings is None and phase.kernel not in WITHOUT_SETTINGS:
            raise ProgramError(
                f"{place}: expected the settings of a training step for phase {node.phase}, "
                "got none: give the executor StepSettings"
            )
        return self._kernel(node, phase, site)

    def _factor(self, node: Compute) -> Factor:
        """Return the function that an instruction with a scale calls once for its number."""
        factor = factor_of(node)
        return factor if self._watch is None else self._watch.factor(factor)

    def _product(self, node: Compute, site: Site) -> list[Action]:
        begun, blocks = self._begun(node), StandardBlocks(self.places)
        swap, *views = operands(site.phase.reads, site.phase.writes)
        names = node.reads[::-1] if swap else node.reads
        left, right = map(blocks.read, names, views)
        into = blocks.written(node.accumulates, as_matrix, begun=begun)
        mm = product if self._watch is None else self._watch.product(site, product)
        factor = self._factor(node)

        def run(frame: Frame) -> None:
            mm(left[0], right[0], into[0], begun, 1.0)

        def run_scaled(frame: Frame) -> None:
            mm(left[0], right[0], into[0], begun, factor())

        return [*blocks.before, run if node.scale == "1" else run_scaled, *blocks.after]

    def _begun(self, node: Compute) -> bool:
        return node.accumulates in self.places.here

    def _kernel(self, node: Compute, phase: Phase, site: Site) -> list[Action]:
        """Call a kernel on the block, or on scratch memory that is then combined with the block."""
        kernel, name = KERNELS[str(phase.kernel)], node.accumulates
        if self._watch is not None:
            kernel = self._watch.kernel(kernel)
        begun, blocks = self._begun(node), StandardBlocks(self.places)
        if self._unchanged(node, phase, site):
            return self.places.alias(name, node.reads[0])
        reads = [blocks.read(read) for read in node.reads]
        taken = IN_PLACE.get(str(phase.kernel))
        if taken is not None and self.places.takes_over(name, node.reads, taken):
            blocks.before += self.places.take_over(name, node.reads[taken])
            block = self.places.slot(name)
        else:
            block = blocks.written(name, begun=begun)
        _, made = blocks.scratch(name) if begun else (None, block)
        factor = None if node.scale == "1" else self._factor(node)
        actions = [*blocks.before, _calling(kernel, site, reads, made, factor)]
        if begun:
            actions.append(_combining(COMBINE[phase.reduction], block, made))
        return [*actions, *blocks.after]

    def _unchanged(self, node: Compute, phase: Phase, site: Site) -> bool:
        """Return whether a kernel's result is the block that it reads, and may be a view of it."""
        same = UNCHANGED.get(str(phase.kernel))
        return (
            same is not None
            and node.scale == "1"
            and same(site)
            and self.places.is_alias(node.accumulates, node.reads[0])
        )

    def _addition(self, node: Compute) -> list[Action]:
        name = node.accumulates
        maker = self.shapes.meaning.maker(name.rstrip("'"))
        combine = COMBINE["sum" if maker is None else maker.reduction]
        begun = self._begun(node)
        blocks = StandardBlocks(self.places)
        first, *others = [blocks.read(read) for read in node.reads]
        into = blocks.written(name, begun=begun)

        def begin(frame: Frame) -> None:
            into[0].copy_(first[0])

        def add(frame: Frame) -> None:
            for read in rest:
                combine(into[0], read[0])

        def add_scaled(frame: Frame) -> None:
            scale = factor()
            for read in rest:
                into[0].add_(read[0], alpha=scale)

        factor = self._factor(node)
        rest = [first, *others] if begun else others
        adding: list[Action] = [] if begun else [begin]
        if node.scale != "1":
            adding += [add_scaled] if begun else [add, _scaling(factor, into)]
        elif rest:
            adding.append(add)
        return [*blocks.before, *adding, *blocks.after]


def _calling(
    kernel: Kernel, site: Site, reads: list[Slot], into: Slot, factor: Factor | None
) -> Action:
    """Return the closure of a kernel; its result is scaled in the dtype of sums, rounded once."""

    def call(frame: Frame) -> None:
        kernel(site, frame.inputs, into[0], *[read[0] for read in reads])

    def call_scaled(frame: Frame) -> None:
        scale, room = factor() if factor else 1.0, wide_room(into[0])
        kernel(site, frame.inputs, room, *[read[0] for read in reads])
        torch.mul(room, scale, out=into[0])

    return call if factor is None else call_scaled


def _scaling(factor: Factor, block: Slot) -> Action:
    return lambda frame: block[0].mul_(factor())


def _combining(combine: Combine, into: Slot, term: Slot) -> Action:
    return lambda frame: combine(into[0], term[0])
