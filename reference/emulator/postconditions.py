"""Where an error is, and what can be wrong with a run as a whole: deadlock, coverage, its ends.

Example: ranks 0 and 1 each begin with a send to the other. Neither returns, and the deadlock reads
`device 0 at programs[0][0] waits for device 1 to receive x; device 1 at programs[1][0] waits for
device 0 to receive y`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from collections.abc import Sequence as Several
from itertools import chain, pairwise, product, repeat
from typing import NamedTuple

from primepar.errors import DeadlockError, IncompleteError
from primepar.reference.emulator.contents import Block, Contents, overlap, sub_operator_text
from primepar.schedule.meaning import Box, Phase, Place
from primepar.schedule.program import Compute, Instruction
from primepar.schedule.sequence import Sequence

Computed = dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]]
"""(phase, slices in the order of its grid) -> (rank, position in its list) of every compute."""
Memories = Several[Mapping[str, Block]]


class Waiting(NamedTuple):
    """A rank that waits: the position of its instruction, the ranks it waits for, and for what."""

    place: int
    ranks: tuple[int, ...]
    what: str


class ErrorPlaces:
    """Texts of the places of one program, with coordinates and steps if its sequence is known."""

    def __init__(self, sequence: Sequence | None) -> None:
        self.sequence = sequence
        self.name = "" if sequence is None else str(sequence)
        self.method = f"{self.name}: " if self.name else ""
        """What a message begins with that is about no single device."""

    def device(self, rank: int) -> str:
        """Return `P2x2, device 2 (r=1, c=0)`."""
        if self.sequence is None or not self.name:
            return f"device {rank}"
        return f"{self.name}, {self.sequence.place(rank)}"

    def of(self, rank: int, place: int, instruction: Instruction) -> str:
        """Return `P2x2, device 2 (r=1, c=0), programs[2][5], forward, t=1`."""
        text = f"{self.device(rank)}, programs[{rank}][{place}]"
        if not isinstance(instruction, Compute) or instruction.phase is None:
            return text
        text, sub_operator = f"{text}, {instruction.phase}", instruction.sub_operator or {}
        if self.sequence is None:
            return text
        # The first step at which the map gives this sub-operator to this rank.
        for step in range(self.sequence.steps):
            slices = self.sequence.slices(instruction.phase, rank, step)
            if all(sub_operator.get(dim) in indices for dim, indices in slices.items()):
                return f"{text}, t={step}"
        return text

    def deadlock(self, waiting: Mapping[int, Waiting]) -> DeadlockError:
        """Return the error of a run in which no rank can continue.

        It lists which rank waits for which one, from the lowest waiting rank until one repeats.
        """
        chain = [min(waiting)]
        while chain[-1] in waiting:
            chain.append(waiting[chain[-1]].ranks[0])
            if chain[-1] in chain[:-1]:
                break
        links = [
            f"device {rank} at programs[{rank}][{waiting[rank].place}] waits for "
            f"{waiting[rank].what}"
            for rank in chain[:-1]
        ]
        if chain[-1] not in waiting:
            links.append(f"device {chain[-1]} has finished")
        others = len(waiting) - len(chain) + 1
        more = f" (and {others} more wait)" if others else ""
        return DeadlockError(
            f"{self.method}expected every device to end, got {len(waiting)} that wait without end: "
            f"{'; '.join(links)}{more}"
        )


def check_coverage(contents: Contents, computed: Computed, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every sub-operator of the grid was computed exactly once."""
    for phase, grid in (contents.program.grid or {}).items():
        for slices in product(*map(range, grid.values())):
            computes = computed.get((phase, slices), [])
            if len(computes) == 1:
                continue
            where = ", ".join(f"programs[{rank}][{place}]" for rank, place in computes) or "nowhere"
            text = sub_operator_text(phase, dict(zip(grid, slices, strict=True)))
            raise IncompleteError(
                f"{places.method}expected {text} to be computed exactly once, "
                f"got it {len(computes)} times: {where}"
            )


def check_final(
    contents: Contents, blocks: Memories, hosts: Memories, used: Set[Place], places: ErrorPlaces
) -> None:
    """Raise `IncompleteError` unless every block of `final` and `host_final` is there and finished.

    An output block of the grid that is in neither must be `used` when it is finished. Without
    `final` every output block must be finished in some memory, which may be that of a host.
    """
    program = contents.program
    if program.final is None:
        for name in _outputs(contents):
            _check_somewhere(contents, name, [*blocks, *hosts], places)
    for rank, names in enumerate(program.final or ()):
        for name in names:
            if name not in blocks[rank]:
                ranks = [str(other) for other, held in enumerate(blocks) if name in held]
                holders = f"device{'s' * (len(ranks) > 1)} {', '.join(ranks)}" * bool(ranks)
                raise IncompleteError(
                    f"{places.device(rank)}: expected {name} in its memory at the end, "
                    f"got it on {holders or 'no device'}"
                )
            difference = contents.difference(name, blocks[rank][name])
            if difference:
                raise IncompleteError(f"{places.device(rank)}: at the end {difference}")
    for rank, names in enumerate(program.host_final or ()):
        for name in names:
            if name not in hosts[rank]:
                raise IncompleteError(
                    f"{places.device(rank)}: expected {name} in its host memory at the end, got it "
                    "not there: evict it after its last use"
                )
            difference = contents.difference(name, hosts[rank][name])
            if difference:
                raise IncompleteError(
                    f"{places.device(rank)}: at the end in host memory {difference}"
                )
    if program.final is not None:
        _check_none_lost(contents, used, places)


def _check_somewhere(
    contents: Contents, name: str, memories: Memories, places: ErrorPlaces
) -> None:
    differences = [contents.difference(name, held[name]) for held in memories if name in held]
    if all(differences):
        got = f"at the end {differences[0]}" if differences else (
            f"expected {name} in some memory at the end, got it in none"
        )  # fmt: skip
        raise IncompleteError(places.method + got)


def _check_none_lost(contents: Contents, used: Set[Place], places: ErrorPlaces) -> None:
    """Raise `IncompleteError` for an output block of the grid that neither ends nor is used.

    A block that is only sent on is lost all the same: what counts is a compute, a cut or a join.
    """
    program = contents.program
    ends = chain.from_iterable((*(program.final or ()), *(program.host_final or ())))
    kept = used | set(filter(None, map(contents.home, ends)))
    for name in _outputs(contents):
        home = contents.home(name)
        if home is None or home in kept:
            continue
        parts = [part.box for part in kept if overlap(part, home)]
        if not all(any(map(_is_in, repeat(cell), parts)) for cell in _cells(home.box, parts)):
            raise IncompleteError(
                f"{places.method}expected {name} in final on some device, or read when it is "
                "finished, got neither"
            )


def _cells(box: Box, parts: Several[Box]) -> Iterator[Box]:
    """Yield what a box falls into where any of its parts begins or ends."""
    lines = [
        sorted({first, end, *(edge for part in parts for edge in part[dim] if first < edge < end)})
        for dim, (first, end) in enumerate(box)
    ]
    return product(*map(pairwise, lines))


def _is_in(cell: Box, box: Box) -> bool:
    return all(start <= first and end <= stop
               for (first, end), (start, stop) in zip(cell, box, strict=True))  # fmt: skip


def _outputs(contents: Contents) -> Iterator[str]:
    for phase in contents.meaning.phases.values():
        yield from output_blocks(phase)


def output_blocks(phase: Phase) -> list[str]:
    """Return the names of the blocks that a phase of the grid makes; none without a grid."""
    grid = phase.grid or {}
    dims = [dim for dim in grid if dim in phase.writes.dims]
    if phase.grid is None:
        return []
    ranges = [range(grid[dim]) for dim in dims]
    names = (phase.writes.block(dict(zip(dims, index, strict=True))) for index in product(*ranges))
    return list(dict.fromkeys(names))
