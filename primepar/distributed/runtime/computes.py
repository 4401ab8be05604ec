"""Sub-operators and additions as closures: a product into a buffer, or a kernel's own tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.kernels import KERNELS, Kernel
from primepar.distributed.kernels.linear import product
from primepar.distributed.runtime.conformance import Watch
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.messages import Action, Frame
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
    """Some actions, in order, as one."""
    if len(actions) == 1:
        return actions[0]
    if len(actions) == 2:
        one, two = actions
        return lambda frame: (one(frame), two(frame))

    def run(frame: Frame) -> None:
        for action in actions:
            action(frame)

    return run


class Computes:
    """Makes the closures of one program's computes."""

    def __init__(
        self,
        shapes: Shapes,
        places: MemoryPlaces,
        settings: StepSettings | None,
        watch: Watch | None,
    ) -> None:
        self.shapes, self.places, self.settings = shapes, places, settings
        self._watch = watch

    def actions(self, node: Compute, at: str) -> tuple[Action, Action]:
        """What runs a compute, and what runs it with its result checked.

        Raises `ProgramError` for a phase without a kernel, or a kernel without its settings.
        """
        if node.phase is None:
            action = self._addition(node)
            return action, action
        phase = self.shapes.meaning.phases[node.phase]
        if phase.kernel not in KERNELS:
            raise ProgramError(
                f"{at}: expected a kernel for phase {node.phase}, got "
                f"{'none' if phase.kernel is None else repr(phase.kernel)}: "
                f"name one of those of primepar.distributed.kernels in its signature"
            )
        if len(node.reads) != len(phase.reads):
            raise ProgramError(
                f"{at}: expected {len(phase.reads)} reads for phase {node.phase}, "
                f"got {len(node.reads)}"
            )
        site = site_of(self.shapes.meaning, node, self.settings)
        if self.shapes.is_product(node.phase):
            action = self._product(node, site)
            return action, action
        if self.settings is None:
            raise ProgramError(
                f"{at}: expected the settings of a training step for phase {node.phase}, got none: "
                "give the executor StepSettings"
            )
        return self._kernel(node, phase, site, at)

    def _product(self, node: Compute, site: Site) -> Action:
        multiply, name, begun = product(site), node.accumulates, self._begun(node)
        if self._watch is not None:
            multiply = self._watch.product(site, multiply)
        first, second = node.reads
        actions = self.places.room(name, keep=begun)

        def run(frame: Frame) -> None:
            blocks = frame.blocks
            multiply(blocks[first], blocks[second], blocks[name], begun)

        return together([*actions, run])

    def _begun(self, node: Compute) -> bool:
        return node.accumulates in self.places.here

    def _kernel(self, node: Compute, phase: Phase, site: Site, at: str) -> tuple[Action, Action]:
        kernel, name = KERNELS[str(phase.kernel)], node.accumulates
        if self._watch is not None:
            kernel = self._watch.kernel(kernel)
        if self._begun(node):
            before, combine = self.places.room(name, keep=True), COMBINE[phase.reduction]
        else:
            before, combine = self.places.adopt(name), None
        dtype = self.places.pool(name).dtype
        run, first = (
            together([*before, _calling(each, site, node, dtype, combine)])
            for each in (kernel, self._checked(kernel, node, at))
        )
        return run, first

    def _checked(self, kernel: Kernel, node: Compute, at: str) -> Kernel:
        """The kernel, which must give a new block: the phase's own, or a wide one to be rounded."""
        shape, pool = self.shapes.shape(node.accumulates), self.places.pool(node.accumulates)
        dtypes = pool.dtype, self.places.pools[1].dtype
        slices = ", ".join(f"{dim}={at}" for dim, at in (node.sub_operator or {}).items())

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
                    f"{at}: expected a new block of {_text(shape, pool.dtype)} from the kernel "
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

        rest = [first, *others] if begun else others
        actions += [] if begun else [begin]
        return together([*actions, add] if rest else actions)


def _calling(
    kernel: Kernel, site: Site, node: Compute, dtype: torch.dtype, combine: Combine | None
) -> Action:
    name, reads = node.accumulates, node.reads

    def adopt(frame: Frame) -> None:
        blocks = frame.blocks
        result = kernel(site, frame.inputs, *[blocks[read] for read in reads])
        blocks[name] = result.to(dtype).contiguous()

    def add(frame: Frame) -> None:
        blocks = frame.blocks
        result = kernel(site, frame.inputs, *[blocks[read] for read in reads])
        if combine is not None:
            combine(blocks[name], result)

    return adopt if combine is None else add


def _text(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"
