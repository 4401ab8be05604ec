"""The optimizer's states sharded over replicas: ZeRO-1 (Rajbhandari et al., arXiv 1910.02054).

Ranks that hold the same block of a parameter are its replicas. Each of them keeps the moments of a
part of the block, its shard, and updates that part alone. It needs the sum of the gradient there
only, and the others need the new part: a reduce-scatter and an all-gather send what the all-reduce
of the whole gradient sends.

The parts are slices of one dim. They are equal if there is such a dim. Otherwise they differ by one
slice at most, and a block with fewer slices than replicas has as many parts as slices. Then every
part is reduced to its rank and broadcast from there, which sends no more. This rule is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from primepar.operators.builder import Cuts, Held, ProgramBuilder, View, even
from primepar.operators.redistribution import reblocked
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import AllGather, Broadcast, Instruction


@dataclass(frozen=True)
class Shards:
    """The parts of the blocks of a parameter: their cuts, and who has which.

    `dim` is the one along which a block is cut into `parts`; `replicas` are the ranks of a block.
    """

    dim: int
    parts: int
    cuts: Cuts
    replicas: dict[Index, tuple[int, ...]]

    @classmethod
    def of(cls, view: View) -> Shards:
        """Return the shards of a parameter."""
        replicas: dict[Index, list[int]] = {}
        for rank, indices in enumerate(view.held):
            for index in indices:
                replicas.setdefault(index, []).append(rank)
        count = max(map(len, replicas.values()))
        dim, parts = _divided(view.cuts, count)
        shape = [line[-1] for line in view.cuts]
        grid = list(view.grid)
        grid[dim] *= parts
        known = {index: tuple(ranks) for index, ranks in replicas.items()}
        return cls(dim, parts, even(shape, grid), known)

    def part(self, index: Index, number: int) -> Index:
        """Return the index of a part of a block."""
        along = index[self.dim] * self.parts + number
        return (*index[: self.dim], along, *index[self.dim + 1 :])

    def owner(self, index: Index, number: int) -> int:
        """Return the rank that has a part of a block as its shard."""
        ranks = self.replicas[index]
        return ranks[number * len(ranks) // self.parts]

    def held(self, ranks: int) -> Held:
        """Return the shards of every rank."""
        held: list[list[Index]] = [[] for _ in range(ranks)]
        for index in self.replicas:
            for number in range(self.parts):
                held[self.owner(index, number)].append(self.part(index, number))
        return tuple(map(tuple, held))

    def is_even(self, index: Index) -> bool:
        """Return whether every replica of a block has one part, and all have the same size."""
        line = self.cuts[self.dim]
        first = index[self.dim] * self.parts
        sizes = {line[k + 1] - line[k] for k in range(first, first + self.parts)}
        return len(sizes) == 1 and len(self.replicas[index]) == self.parts


def _divided(cuts: Cuts, count: int) -> tuple[int, int]:
    """Return the dim to cut, and the parts: `count` equal ones, or as many as there can be."""
    slices = [line[-1] // (len(line) - 1) for line in cuts]
    for dim, line in enumerate(cuts):
        if line[-1] % ((len(line) - 1) * count) == 0:
            return dim, count
    dim = slices.index(max(slices))
    return dim, min(count, slices[dim])


def own_view(view: View) -> View:
    """Return the view of every rank's shards of a parameter."""
    shards = Shards.of(view)
    return replace(view, cuts=shards.cuts, held=shards.held(len(view.held)))


def own_parts(builder: ProgramBuilder, parameter: View, view: View, name: str) -> View:
    """Cut a view with the blocks of a parameter into shards; returns each rank's own."""
    shards = own_view(parameter)
    return replace(reblocked(builder, view, shards.cuts, name), held=shards.held)


def whole_again(builder: ProgramBuilder, parameter: View, made: View, name: str) -> View:
    """Gather the shards of a tensor on all replicas, and join them to the blocks of a parameter.

    The tensor gets the name `name`, and `made` becomes other cuts of it. If every rank has whole
    blocks as shards, the view is returned unchanged.
    """
    if made.cuts == parameter.cuts:
        return made
    shards = Shards.of(parameter)
    held: list[list[Index]] = [[] for _ in range(builder.ranks)]
    for index, ranks in shards.replicas.items():
        parts = [shards.part(index, number) for number in range(shards.parts)]
        for rank in ranks:
            builder.programs[rank] += _gathered(shards, index, rank, made.name)
            held[rank] += parts
    everywhere = replace(made, held=tuple(map(tuple, held)))
    whole = reblocked(builder, everywhere, parameter.cuts, name)
    builder.exchange_names(made.name, name)
    return whole


def _gathered(shards: Shards, index: Index, rank: int, name: str) -> list[Instruction]:
    """Return what gathers the parts of a block on one of its replicas."""
    ranks = shards.replicas[index]
    numbers = range(shards.parts)
    blocks = tuple(block_name(name, shards.part(index, number)) for number in numbers)
    if len(ranks) == 1:
        return []
    if shards.is_even(index):
        return [AllGather(ranks, block=blocks[ranks.index(rank)], blocks=blocks)]
    return [
        Broadcast(ranks, block=block, root=shards.owner(index, number))
        for number, block in zip(numbers, blocks, strict=True)
    ]
