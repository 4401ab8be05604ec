"""What instructions touch, and where in one rank's list every block is touched."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from primepar.schedule.program import (
    Alloc,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Instruction,
    IRecv,
    ISend,
    Join,
    Wait,
)
from primepar.schedule.program_uses import frees, uses, writes

Names = tuple[str, ...]
LOCAL = frozenset({Compute, Alloc, Free, Fetch, Evict, Cut, Join})
"""Instructions that touch nothing but their own rank."""


class UsedBlocks(NamedTuple):
    """Blocks that an instruction has to do with; a wait has nothing of its own: see `named`."""

    reads: Names
    made: Names
    """What it makes or changes; a sum is read too."""
    gone: Names
    """What is not there after it, unless it makes it anew."""

    @property
    def changes(self) -> Names:
        """What it makes, changes or ends."""
        return self.made + self.gone


NOTHING = UsedBlocks((), (), ())
_FAST: dict[type[Instruction], Callable[..., UsedBlocks]] = {
    Compute: lambda node: UsedBlocks((*node.reads, node.accumulates), (node.accumulates,), ()),
    Free: lambda node: UsedBlocks((), (), (node.block,)),
    ISend: lambda node: UsedBlocks((node.block,), (), ()),
    IRecv: lambda node: UsedBlocks((), (node.block,), ()),
    Wait: lambda node: NOTHING,
    Cut: lambda node: UsedBlocks(
        (node.block,), node.blocks, (node.block,) if node.in_place else ()
    ),
    Join: lambda node: UsedBlocks(node.blocks, (node.block,), node.blocks if node.in_place else ()),
}
"""The kinds that most lists are made of."""


class Rank:
    """What the instructions of one rank touch, looked up once for each."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._known: dict[int, tuple[Instruction, UsedBlocks]] = {}

    def touched(self, node: Instruction) -> UsedBlocks:
        """What one instruction touches."""
        known = self._known.get(id(node))
        if known is None:
            # The instruction is kept too, so that no other one gets its id.
            known = self._known[id(node)] = (node, self._touched(node))
        return known[1]

    def _touched(self, node: Instruction) -> UsedBlocks:
        fast = _FAST.get(type(node))
        if fast is not None:
            return fast(node)
        return UsedBlocks(uses(node, self.rank), writes(node, self.rank), frees(node))


def request_of(node: Instruction) -> str | None:
    """What a message or collective is posted under, or what a wait waits for."""
    request: str | None = getattr(node, "request", None)
    return request


def followed(nodes: Iterable[Instruction], rank: Rank) -> Iterator[tuple[Instruction, UsedBlocks]]:
    """Every instruction with what it touches, a wait with what its post touches."""
    posted: dict[str, UsedBlocks] = {}
    for node in nodes:
        if type(node) is Wait:
            yield node, posted.pop(node.request, NOTHING)
            continue
        own = rank.touched(node)
        if type(node) not in LOCAL:
            request = request_of(node)
            if request is not None:
                posted[request] = own
        yield node, own


class RankList:
    """One rank's instructions, and for every block the places where it is touched, in order.

    A posted message touches its blocks at its post and again at its wait, and they are in flight
    between; without a wait to the end.
    """

    def __init__(
        self,
        nodes: Sequence[Instruction],
        rank: Rank,
        initial: Iterable[str] = (),
    ) -> None:
        self.nodes, self.rank, self.initial = nodes, rank, frozenset(initial)
        self.touches: dict[str, list[int]] = {}
        self.communicating: list[int] = []
        """Where messages or collectives are started or awaited."""
        self._flights: dict[str, list[tuple[int, int]]] = {}
        pending: dict[str, tuple[int, Names]] = {}
        touches = self.touches
        for place, (node, own) in enumerate(followed(nodes, rank)):
            names = own.reads + own.made + own.gone
            for name in names:
                places = touches.get(name)
                if places is None:
                    touches[name] = [place]
                elif places[-1] != place:
                    places.append(place)
            if type(node) in LOCAL:
                continue
            self.communicating.append(place)
            request = request_of(node)
            if type(node) is Wait:
                self._fly(names, pending.pop(node.request, (place, names))[0], place)
            elif request is not None:
                pending[request] = place, names
        for post, names in pending.values():
            self._fly(names, post, len(nodes))

    def _fly(self, names: Names, post: int, end: int) -> None:
        for name in names:
            self._flights.setdefault(name, []).append((post, end))

    def before(self, name: str, place: int) -> int | None:
        """Where a block is touched last before a place."""
        touches = self.touches.get(name, ())
        at = bisect_left(touches, place)
        return touches[at - 1] if at else None

    def after(self, name: str, place: int) -> int | None:
        """Where a block is touched next after a place."""
        touches = self.touches.get(name, ())
        at = bisect_right(touches, place)
        return touches[at] if at < len(touches) else None

    def between(self, name: str, first: int, last: int) -> Sequence[int]:
        """Where a block is touched after one place and before another."""
        touches = self.touches.get(name, ())
        return touches[bisect_right(touches, first) : bisect_left(touches, last)]

    def is_waiting(self, first: int, last: int) -> bool:
        """Whether messages or collectives are started or awaited between two places."""
        return bisect_right(self.communicating, first) < bisect_left(self.communicating, last)

    def is_absent(self, name: str, place: int) -> bool:
        """Whether there is no such block just before an instruction."""
        last = self.before(name, place)
        if last is None:
            return name not in self.initial
        own = self.rank.touched(self.nodes[last])
        return name in own.gone and name not in own.made

    def is_in_flight(self, name: str, place: int) -> bool:
        """Whether a posted message uses a block at a place."""
        return any(post < place < end for post, end in self._flights.get(name, ()))
