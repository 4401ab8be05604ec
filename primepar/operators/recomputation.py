"""Activations that are computed again in backward, instead of kept from forward.

Chen et al., arXiv 1604.06174, keep the inputs of segments and compute the rest again. `full` does
so with the layers of a transformer, like Megatron. `selective` computes again only what is local
and cheap: the outputs of norms, without their statistics, and of activations. That choice is ours.
Or a plan names the operators of a layer that run again as a whole, with their messages: `full` is
the choice of all of them. Korthikanti et al., arXiv 2205.05198, choose the inside of attention, of
which the kernels here keep nothing in any case; `attention` drops its output too.

A layer is a list of instructions in forward. Blocks that only its own backward uses are freed at
its end. Before that backward the same instructions run again, those that such a block needs:
messages too, but in `selective`. Products are marked as computed `again`, so that coverage counts
them once. The blocks have the names that they had before. So the proof asks of the new ones what it
asked of the old ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from primepar.operators.builder import Section
from primepar.operators.data_flow import DataFlow, InstructionPlace
from primepar.passes.block_uses import Rank
from primepar.plan.plan import Recomputation
from primepar.schedule.program import Compute, Cut, Free, Instruction, Join, Wait
from primepar.schedule.signature import Signature

Blocks = set[tuple[int, str]]
"""Blocks with their ranks."""
Phases = Mapping[str, Signature]
_CHEAP = ("norm.normalize", "norm.forward", "layer_norm.normalize", "activation.forward")
"""Kernels that a selective recomputation runs again."""
AGAIN = " again"
"""End of the name of a request that is posted again."""


@dataclass(frozen=True)
class Layer:
    """A layer of a section: on every rank where it ends, and where its backward begins.

    `operators` are where its operators begin, by name in the layer.
    """

    operators: Mapping[str, tuple[int, ...]]
    ends: tuple[int, ...]
    backward: tuple[int, ...]

    @property
    def begins(self) -> tuple[int, ...]:
        """On every rank where the layer begins."""
        return next(iter(self.operators.values()))

    def has(self, place: InstructionPlace) -> bool:
        """Return whether an instruction of forward is in the layer."""
        return self.begins[place.rank] <= place.position < self.ends[place.rank]

    def operator(self, place: InstructionPlace) -> str:
        """Return the operator of an instruction of the layer; what it receives is its own."""
        names = [*self.operators]
        starts = [positions[place.rank] for positions in self.operators.values()]
        return names[bisect_right(starts, place.position) - 1]


def recompute(
    kind: Recomputation,
    layers: Iterable[Layer],
    forward: Section,
    backward: Section,
    later: Iterable[Section],
    phases: Phases,
    output: Blocks,
) -> None:
    """Let layers of a section be computed again where `backward` begins with them.

    The layers are given in the order of backward. `later` are the sections after backward. The
    blocks of the `output` are kept.
    """
    flow = DataFlow(forward.programs)
    used = _used_later([backward, *later])
    parts = [_Again(kind, flow, layer, phases, used, output) for layer in layers]
    for rank in range(len(forward.programs)):
        freed: dict[int, list[Instruction]] = {}
        repeated: dict[int, list[Instruction]] = {}
        for part in parts:
            frees, nodes = part.lists(rank)
            freed.setdefault(part.layer.ends[rank], []).extend(frees)
            repeated.setdefault(part.layer.backward[rank], []).extend(nodes)
        forward.insert(rank, freed)
        backward.insert(rank, repeated)


def _used_later(sections: Iterable[Section]) -> Blocks:
    """Return the blocks (rank, name) of forward that later sections use."""
    used: Blocks = set()
    made: Blocks = set()
    for section in sections:
        for rank, nodes in enumerate(section.programs):
            touched = Rank(rank).touched
            for node in nodes:
                blocks = touched(node)
                names = node.reads if isinstance(node, Compute) else blocks.reads
                used.update((rank, name) for name in names if (rank, name) not in made)
                made.update((rank, name) for name in blocks.made)
    return used


class _Again:
    """What one layer computes again: the instructions that are `kept`."""

    def __init__(self, kind: Recomputation, flow: DataFlow, layer: Layer, phases: Phases,
                 used: Blocks, output: Blocks) -> None:  # fmt: skip
        self.kind, self.flow, self.layer, self.phases, self.output = (
            kind, flow, layer, phases, output
        )  # fmt: skip
        self.possible = {place for place in flow.reads if layer.has(place)}
        self._leave_out_impossible()
        # Of what the layer makes, what backward reads from it; all else is freed, and only what
        # these need is made again.
        wanted = [
            version.maker
            for ends in flow.ends
            for version in ends.values()
            if version[:2] in used and version.maker in self.possible
        ]
        self.kept = self._needed([place for place in wanted if place is not None])

    def lists(self, rank: int) -> tuple[list[Instruction], list[Instruction]]:
        """Return the frees at the end of a rank's layer, and what it runs again."""
        nodes = self.flow.lists[rank]
        here: set[str] = set()
        again: list[Instruction] = []
        for position in range(self.layer.begins[rank], self.layer.ends[rank]):
            place, node = InstructionPlace(rank, position), nodes[position]
            if isinstance(node, Free) and node.block in here:
                here.discard(node.block)
                again.append(node)
            elif isinstance(node, Wait) and self.flow.needs[place] <= self.kept:
                again.append(Wait(node.request + AGAIN))
            elif place in self.kept:
                here.update(Rank(rank).touched(node).made)
                again.append(_repeated(node))
        ends = self.flow.ends[rank]
        freed = [Free(name) for name, version in ends.items() if version.maker in self.kept]
        return [*freed], again

    def _leave_out_impossible(self) -> None:
        """Leave out what does not run again, and what needs data that is not there in backward."""
        waiting = [place for place in self.possible if not self._is_repeatable(place)]
        neighbours: dict[InstructionPlace, set[InstructionPlace]] = {}
        for place in self.possible:
            for other in self.flow.needs[place]:
                neighbours.setdefault(other, set()).add(place)
        self.possible.difference_update(waiting)
        waiting += self.possible
        # One that cannot run again takes with it those that need it, and its partners on other
        # ranks: a message is sent again by both or by none.
        while waiting:
            place = waiting.pop()
            if place in self.possible and self._has_all(place):
                continue
            self.possible.discard(place)
            users = {
                user
                for version in self.flow.made[place]
                for user in self.flow.users.get(version, ())
            }
            waiting += self.possible & (users | neighbours.get(place, set()))

    def _is_repeatable(self, place: InstructionPlace) -> bool:
        """Return whether an instruction may run again: only the layer uses what it makes."""
        node = self.flow.lists[place.rank][place.position]
        return self._is_chosen(place, node) and all(
            version[:2] not in self.output
            and all(map(self.layer.has, self.flow.users.get(version, ())))
            for version in self.flow.made[place]
        )

    def _is_chosen(self, place: InstructionPlace, node: Instruction) -> bool:
        """Return whether the plan lets an instruction run again; cuts and joins always do."""
        if self.kind == "selective":
            return _is_cheap(node, self.phases)
        is_local = isinstance(node, Cut | Join)
        return self.kind == "full" or is_local or self.layer.operator(place) in self.kind

    def _has_all(self, place: InstructionPlace) -> bool:
        """Return whether all that an instruction needs is there in backward, or is made again."""
        return self.flow.needs[place] <= self.possible and all(
            version.maker in self.possible or self.flow.stays(version)
            for version in self.flow.reads[place]
        )

    def _needed(self, wanted: list[InstructionPlace]) -> set[InstructionPlace]:
        """Return the instructions that some of them need, and these."""
        needed: set[InstructionPlace] = set()
        while wanted:
            place = wanted.pop()
            if place not in needed:
                needed.add(place)
                wanted += self.flow.needs[place]
                makers = (version.maker for version in self.flow.reads[place])
                wanted += [maker for maker in makers if maker in self.possible]
        return needed


def _is_cheap(node: Instruction, phases: Phases) -> bool:
    """Return whether a selective recomputation runs an instruction again."""
    if isinstance(node, Compute):
        signature = phases.get(str(node.phase))
        return signature is not None and signature.kernel in _CHEAP
    return isinstance(node, Cut | Join)


def _repeated(node: Instruction) -> Instruction:
    """Return an instruction as it runs again."""
    if isinstance(node, Compute) and node.phase is not None:
        return replace(node, again=True)
    request = getattr(node, "request", None)
    return node if request is None else replace(node, request=request + AGAIN)
