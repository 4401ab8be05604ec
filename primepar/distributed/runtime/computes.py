"""Compiles sub-operators and additions to closures.

A product of a linear operator writes into a buffer; a kernel returns a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.kernels import KERNELS, Kernel
from primepar.distributed.kernels.linear import product
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.messages import Action, Frame
from primepar.distributed.runtime.scales import Factor, factor_of
from primepar.distributed.runtime.shapes import Shapes
from primepar.errors import ProgramError
from primepar.operators import Site, StepInputs, StepSettings, site_of
from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute

Combine = Callable[[torch.Tensor, torch.Tensor], object]
COMBINE: dict[str, Combine] = {
    "sum": torch.Tensor.add_,
    "max": lambda into, term: torch.maximum(into, term, out=into),
    "min": lambda into, term: torch.minimum(into, term, out=into),
}


def together(actions: list[Action]) -> Action:
    """Return one action that runs the given actions in order."""
    if len(actions) == 1:
        return actions[0]
    if len(actions) == 2:
        first, second = actions
        return lambda frame: (first(frame), second(frame))

    def run(frame: Frame) -> None:
        for action in actions:
            action(frame)

    return run


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

    def actions(self, node: Compute, place: str) -> tuple[Action, Action]:
        """Return the action that runs a compute, and one that also checks its result.

        Raises `ProgramError` for a phase without a kernel, or a kernel without its settings.
        """
        if node.phase is None:
            action = self._addition(node)
            return action, action
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
            action = self._product(node, site)
            return action, action
        if self.settings is None:
            raise ProgramError(
                f"{place}: expected the settings of a training step for phase {node.phase}, "
                "got none: give the executor StepSettings"
            )
        return self._kernel(node, phase, site, place)

    def _factor(self, node: Compute) -> Factor:
        """Return the function that an instruction with a scale calls once for its number."""
        factor = factor_of(node)
        return factor if self._watch is None else self._watch.factor(factor)

    def _product(self, node: Compute, site: Site) -> Action:
        multiply, name, begun = product(site), node.accumulates, self._begun(node)
        if self._watch is not None:
            multiply = self._watch.product(site, multiply)
        first, second = node.reads
        actions = self.places.room(name, keep=begun)

        def run(frame: Frame) -> None:
            blocks = frame.blocks
            multiply(blocks[first], blocks[second], blocks[name], begun, 1.0)

        def run_scaled(frame: Frame) -> None:
            blocks = frame.blocks
            multiply(blocks[first], blocks[second], blocks[name], begun, factor())

        factor = self._factor(node)
        return together([*actions, run if node.scale == "1" else run_scaled])

    def _begun(self, node: Compute) -> bool:
        return node.accumulates in self.places.here

    def _kernel(self, node: Compute, phase: Phase, site: Site, place: str) -> tuple[Action, Action]:
        kernel, name = KERNELS[str(phase.kernel)], node.accumulates
        if self._watch is not None:
            kernel = self._watch.kernel(kernel)
        if self._begun(node):
            before, combine = self.places.room(name, keep=True), COMBINE[phase.reduction]
        else:
            before, combine = self.places.adopt(name), None
        dtype = self.places.pool(name).dtype
        factor = None if node.scale == "1" else self._factor(node)
        run, first = (
            together([*before, _calling(function, site, node, dtype, combine, factor)])
            for function in (kernel, self._checked(kernel, node, place))
        )
        return run, first

    def _checked(self, kernel: Kernel, node: Compute, place: str) -> Kernel:
        """Return the kernel with a check that it returns a new block.

        The block has the shape of the phase's output, and its dtype or the wide one (then it is
        rounded).
        """
        shape, pool = self.shapes.shape(node.accumulates), self.places.pool(node.accumulates)
        dtypes = pool.dtype, self.places.pools[1].dtype
        slices = ", ".join(f"{dim}={index}" for dim, index in (node.sub_operator or {}).items())

        def checked(site: Site, inputs: StepInputs, *blocks: torch.Tensor) -> torch.Tensor:
            result = kernel(site, inputs, *blocks)
            phase, got = site.phase, ""
            if tuple(result.shape) != shape or result.dtype not in dtypes:
                got = _text(tuple(result.shape), result.dtype)
            for name, block in zip(node.reads, blocks, strict=True):
                if result.untyped_storage().data_ptr() == block.untyped_storage().data_ptr():
                    got = f"the memory of {name}"
            if got:
                raise ProgramError(
                    f"{place}: expected a new block of {_text(shape, pool.dtype)} from the kernel "
                    f"{phase.kernel} of phase {phase.name} at {slices}, got {got}"
                )
            return result

        return checked

    def _addition(self, node: Compute) -> Action:
        name, (first, *others) = node.accumulates, node.reads
        maker = self.shapes.meaning.maker(name.rstrip("'"))
        combine = COMBINE["sum" if maker is None else maker.reduction]
        begun = self._begun(node)
        actions = self.places.room(name, keep=begun)

        def begin(frame: Frame) -> None:
            frame.blocks[name].copy_(frame.blocks[first])

        def add(frame: Frame) -> None:
            into = frame.blocks[name]
            for read in rest:
                combine(into, frame.blocks[read])

        def multiply(frame: Frame) -> None:
            frame.blocks[name].mul_(factor())

        def add_scaled(frame: Frame) -> None:
            into, scale = frame.blocks[name], factor()
            for read in rest:
                into.add_(frame.blocks[read], alpha=scale)

        factor = self._factor(node)
        rest = [first, *others] if begun else others
        if node.scale != "1":
            return together([*actions, *([add_scaled] if begun else [begin, add, multiply])])
        actions += [] if begun else [begin]
        return together([*actions, add] if rest else actions)


def _calling(
    kernel: Kernel,
    site: Site,
    node: Compute,
    dtype: torch.dtype,
    combine: Combine | None,
    factor: Factor | None,
) -> Action:
    """Return the closure of a kernel; its result, a new block, is scaled in place."""
    name, reads = node.accumulates, node.reads

    def computed(frame: Frame) -> torch.Tensor:
        scale = 1.0 if factor is None else factor()
        result = kernel(site, frame.inputs, *[frame.blocks[read] for read in reads])
        return result if factor is None else result.mul_(scale)

    def adopt(frame: Frame) -> None:
        frame.blocks[name] = computed(frame).to(dtype).contiguous()

    def add(frame: Frame) -> None:
        blocks, result = frame.blocks, computed(frame)
        if combine is not None:
            combine(blocks[name], result)

    return adopt if combine is None else add


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"
