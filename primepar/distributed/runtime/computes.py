"""Compiles sub-operators and additions to closures.

A product of a linear operator adds to a block; any other kernel replaces one.

The last bits of a product depend on strides and on alignment, as a BLAS chooses its order of
summation by them. Every block has whole rows from an aligned byte, in every mode of a run. So all
modes call the same kernels on the same operands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.kernels import (
    IN_PLACE,
    KERNELS,
    RETURNED,
    WITHOUT_SETTINGS,
    Kernel,
)
from primepar.distributed.kernels.common import wide_room
from primepar.distributed.kernels.linear import as_matrix, operands, product
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.memory import Allocate, Release, Slot, Take
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.running import Action, Frame
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
        begun = self._begun(node)
        swap, *views = operands(site.phase.reads, site.phase.writes)
        names = node.reads[::-1] if swap else node.reads
        left, right = map(self.places.slot, names, views)
        room = self.places.room(node.accumulates, keep=begun)
        into = self.places.slot(node.accumulates, as_matrix)
        mm = product if self._watch is None else self._watch.product(site, product)
        factor = self._factor(node)

        def run(frame: Frame) -> None:
            mm(left[0], right[0], into[0], begun, 1.0)

        def run_scaled(frame: Frame) -> None:
            mm(left[0], right[0], into[0], begun, factor())

        return [*room, run if node.scale == "1" else run_scaled]

    def _begun(self, node: Compute) -> bool:
        return node.accumulates in self.places.here

    def _kernel(self, node: Compute, phase: Phase, site: Site) -> list[Action]:
        """Call a kernel on the block, or on scratch memory that is then combined with the block."""
        kernel, name = KERNELS[str(phase.kernel)], node.accumulates
        if self._watch is not None:
            kernel = self._watch.kernel(kernel)
        begun, places = self._begun(node), self.places
        reads = [places.slot(read) for read in node.reads]
        taken = IN_PLACE.get(str(phase.kernel))
        if taken is not None and places.takes_over(name, node.reads, taken):
            room = places.take_over(name, node.reads[taken])
        else:
            room = places.room(name, keep=begun)
        block = places.slot(name)
        factor = None if node.scale == "1" else self._factor(node)
        call = _making if phase.kernel in RETURNED else _calling
        if not begun:
            return call(kernel, site, reads, block, factor, room)
        buffer, allocate = places.scratch(self.shapes.shape(name), name)
        made = buffer.attach([None])
        calling = call(kernel, site, reads, made, factor, [allocate])
        combining = _combining(COMBINE[phase.reduction], block, made)
        return [*room, *calling, combining, Release(buffer)]

    def _addition(self, node: Compute) -> list[Action]:
        name = node.accumulates
        maker = self.shapes.meaning.maker(name.rstrip("'"))
        combine = COMBINE["sum" if maker is None else maker.reduction]
        begun = self._begun(node)
        first, *others = [self.places.slot(read) for read in node.reads]
        room = self.places.room(name, keep=begun)
        into = self.places.slot(name)

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
        return [*room, *adding]


def _calling(
    kernel: Kernel,
    site: Site,
    reads: list[Slot],
    into: Slot,
    factor: Factor | None,
    room: list[Action],
) -> list[Action]:
    """Call a kernel that writes; its result is scaled in the dtype of sums, rounded once."""

    def call(frame: Frame) -> None:
        kernel(site, frame.inputs, into[0], *[read[0] for read in reads])

    def call_scaled(frame: Frame) -> None:
        scale, wide = factor() if factor else 1.0, wide_room(into[0])
        kernel(site, frame.inputs, wide, *[read[0] for read in reads])
        torch.mul(wide, scale, out=into[0])

    return [*room, call if factor is None else call_scaled]


def _making(
    kernel: Kernel,
    site: Site,
    reads: list[Slot],
    into: Slot,
    factor: Factor | None,
    room: list[Action],
) -> list[Action]:
    """Call a kernel that returns the memory of its block, where it would be allocated."""

    def make(frame: Frame) -> torch.Tensor | None:
        return kernel(site, frame.inputs, *[read[0] for read in reads])

    actions: list[Action] = [
        Take(action.buffer, make) if isinstance(action, Allocate) else action for action in room
    ]
    return actions if factor is None else [*actions, _scaling(factor, into)]


def _scaling(factor: Factor, block: Slot) -> Action:
    return lambda frame: block[0].mul_(factor())


def _combining(combine: Combine, into: Slot, term: Slot) -> Action:
    return lambda frame: combine(into[0], term[0])
