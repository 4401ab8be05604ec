"""Moves of instructions within their rank that leave what the rank computes as it is.

Two instructions of a rank may change places unless both access one block and one of them writes it,
or both belong to one request. A send may pass another send: which message meets which receive is
then for the proof to decide.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from primepar.schedule.effects import effects
from primepar.schedule.program import Program

Order = tuple[int, ...]
"""The instructions of one rank by their indices in the wrong program."""


class Edit(Struct, frozen=True):
    """One edit: on each of `ranks` an instruction is moved next to another one.

    `places` are (rank, moved instruction, the one that it is moved before or behind), by their
    indices in the wrong program: several where a loop repeats them, or several ranks run them.
    """

    places: tuple[tuple[int, int, int], ...]
    before: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose order changes."""
        return tuple(dict.fromkeys(rank for rank, _, _ in self.places))


class RankAccesses:
    """What each instruction of one rank reads and writes, and which must keep their order."""

    def __init__(self, program: Program, rank: int) -> None:
        self.instructions = program.programs[rank]
        # A post accesses its blocks, and its wait none: so what accesses a block in flight may move
        # behind the wait. The proof refutes what moves the other way.
        self._effects = [effects(node, rank) for node in self.instructions]

    def ordered(self, first: int, second: int) -> bool:
        """Whether two instructions must stay in their order."""
        one, other = self._effects[first], self._effects[second]
        # What is added to a block is read before, so that two sums into one block keep their order.
        changed, also = {*one.writes, *one.frees}, {*other.writes, *other.frees}
        written = changed & {*other.reads, *also} or {*one.reads} & also
        return bool(written) or self._share_a_request(first, second)

    def _share_a_request(self, first: int, second: int) -> bool:
        names = [getattr(self.instructions[place], "request", None) for place in (first, second)]
        return names[0] is not None and names[0] == names[1]


def moved(order: Order, source: int, target: int, before: bool, rank: RankAccesses) -> Order | None:
    """The order with `source` right before or behind `target`; None where data forbids it."""
    start, end = order.index(source), order.index(target)
    passed = order[end:start] if before else order[start + 1 : end + 1]
    if not passed or any(rank.ordered(*sorted((source, other))) for other in passed):
        return None
    rest = [index for index in order if index != source]
    rest.insert(rest.index(target) + (not before), source)
    return tuple(rest)


def reordered(program: Program, orders: tuple[Order, ...]) -> Program:
    """The program with the instructions of every rank in the given order."""
    lists = tuple(
        tuple(instructions[index] for index in order)
        for instructions, order in zip(program.programs, orders, strict=True)
    )
    return replace(program, programs=lists)
