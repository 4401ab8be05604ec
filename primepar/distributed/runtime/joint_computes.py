"""Adjacent computes that one kernel does at once, as torch has one function for all of them.

Example: mean and variance, normalization, weight and bias of a layer norm whose rows are whole on a
rank are one call of `torch.native_layer_norm`. Observed runs, and runs with a limit of memory, do
each compute by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from primepar.distributed.kernels.joint import JOINT, Joint
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.messages import Action, Frame
from primepar.distributed.runtime.shapes import Shapes
from primepar.operators import Site, StepSettings, site_of
from primepar.schedule.program import Compute, Instruction

Nodes = tuple[Instruction, ...]


class JointComputes:
    """Finds and compiles the computes of one rank's list that one kernel does."""

    def __init__(self, shapes: Shapes, places: MemoryPlaces, settings: StepSettings | None) -> None:
        self._shapes, self._places, self._settings = shapes, places, settings

    def grouped(self, groups: Iterable[Nodes]) -> Iterator[Nodes]:
        """Yield groups of instructions in order, those of one kernel together."""
        rest = list(groups)
        place = 0
        while place < len(rest):
            size = next((len(j.kernels) for j in JOINT if self._starts(j, rest[place:])), 1)
            yield tuple(node for nodes in rest[place : place + size] for node in nodes)
            place += size

    def _starts(self, joint: Joint, rest: Sequence[Nodes]) -> bool:
        """Return whether the groups start with computes that the kernel does."""
        computes = [
            node
            for (node, *more) in rest[: len(joint.kernels)]
            if isinstance(node, Compute) and not more
        ]
        if len(computes) < len(joint.kernels):
            return False
        return self._kernels(computes) == joint.kernels and _given(joint, computes) is not None

    def _kernels(self, computes: Sequence[Compute]) -> tuple[str | None, ...]:
        phases = self._shapes.meaning.phases
        known = (phases.get(str(node.phase)) for node in computes)
        return tuple(phase.kernel if phase is not None else None for phase in known)

    def actions(self, computes: Sequence[Compute]) -> list[Action] | None:
        """Return the actions of computes of one kernel; None if each is to run by itself."""
        kernels, writes = self._kernels(computes), [node.accumulates for node in computes]
        joint = next(joint for joint in JOINT if joint.kernels == kernels)
        given, last = _given(joint, computes), self._places.place + len(computes) - 1
        names = [*(given or ()), *writes]
        if (
            self._settings is None
            or given is None
            or any(node.scale != "1" for node in computes)
            or any(name in self._places.here for name in writes)
            or len({self._places.dtype(name) for name in names}) > 1
            or any(self._places.is_used_after(writes[place], last) for place in joint.left_out)
        ):
            return None
        site = site_of(self._shapes.meaning, computes[-1], self._settings)
        if self._shapes.shape(writes[-1])[-1] != self._settings.model.hidden:
            return None
        actions = [action for name in writes for action in self._places.room(name)]
        return [*actions, self._calling(joint, site, given, writes)]

    def _calling(self, joint: Joint, site: Site, given: list[str], writes: list[str]) -> Action:
        run, (reads, intos) = joint.run, (
            [self._places.slot(name) for name in names] for names in (given, writes)
        )  # fmt: skip

        def call(frame: Frame) -> None:
            run(site, [into[0] for into in intos], *[read[0] for read in reads])

        return call


def _given(joint: Joint, computes: Sequence[Compute]) -> list[str] | None:
    return joint.given([node.reads for node in computes], [node.accumulates for node in computes])
