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


class Touched(NamedTuple):
    """Blocks that an instruction reads, and those that it makes, changes or ends.

    A sum is among both. A wait touches nothing of its own: see `Line`.
    """

    reads: Names
    changes: Names


_FAST: dict[type[Instruction], Callable[..., Touched]] = {
    Compute: lambda node: Touched((*node.reads, node.accumulates), (node.accumulates,)),
    Free: lambda node: Touched((), (node.block,)),
    ISend: lambda node: Touched((node.block,), ()),
    IRecv: lambda node: Touched((), (node.block,)),
    Wait: lambda node: Touched((), ()),
}
"""The kinds that most lists are made of."""


def touched(node: Instruction, rank: int) -> Touched:
    """What one instruction touches."""
    fast = _FAST.get(type(node))
    if fast is not None:
        return fast(node)
    return Touched(uses(node, rank), (*writes(node, rank), *frees(node)))


def request_of(node: Instruction) -> str | None:
    """What a message or collective is posted under, or what a wait waits for."""
    request: str | None = getattr(node, "request", None)
    return request


def named(nodes: Iterable[Instruction], rank: int) -> Iterator[tuple[Instruction, Names]]:
    """Every instruction with the blocks that it touches, a wait with those of what it ends."""
    posted: dict[str, Names] = {}
    for node in nodes:
        if type(node) is Wait:
            yield node, posted.pop(node.request, ())
            continue
        reads, changes = touched(node, rank)
        names = tuple(dict.fromkeys((*reads, *changes)))
        request = request_of(node)
        if request is not None:
            posted[request] = names
        yield node, names


class Line:
    """One rank's instructions, and for every block the places where it is touched, in order.

    A posted message touches its blocks at its post and again at its wait, and they are in flight
    between; without a wait to the end.
    """

    def __init__(self, nodes: Sequence[Instruction], rank: int, initial: Iterable[str]) -> None:
        self.nodes, self.rank, self.initial = nodes, rank, frozenset(initial)
        self.touches: dict[str, list[int]] = {}
        self.communicating: list[int] = []
        """Where messages or collectives are started or awaited."""
        self._flights: dict[str, list[tuple[int, int]]] = {}
        pending: dict[str, tuple[int, Names]] = {}
        for place, (node, names) in enumerate(named(nodes, rank)):
            for name in names:
                self.touches.setdefault(name, []).append(place)
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
        return name in frees(self.nodes[last]) and name not in writes(self.nodes[last], self.rank)

    def is_in_flight(self, name: str, place: int) -> bool:
        """Whether a posted message uses a block at a place."""
        return any(post < place < end for post, end in self._flights.get(name, ()))
