"""Who waits for whom: an order in which a program runs to its end, or a circle of waiting ranks.

The strictest semantics: a message is done only when both sides have been posted (rendezvous), a
collective when every member has called. Without wildcards such a program reaches its end in every
interleaving or in none (Siegel and Avrunin, synchronous executions). The search here is linear
and is not trusted: Z3 checks the order that it finds, or that the circle cannot be ordered.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import z3

from primepar.verify.deadline import UnansweredError, in_time
from primepar.verify.program.matching import Matching, MessageEnd, Operation, needs
from primepar.verify.program.solver import Solver

_NEVER = -1


class Stretch(NamedTuple):
    """Instructions of one rank that run without waiting; only the last one may wait."""

    rank: int
    operations: tuple[Operation, ...]

    @property
    def waiting(self) -> Operation | None:
        """The operation at the end that other ranks can hold up."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.blocks else None


class Waits:
    """The wait graph of a program: stretches, and one node for each meeting of a collective."""

    def __init__(self, flow: Matching, buffered: bool) -> None:
        self.flow, self.buffered = flow, buffered
        self.stretches: list[Stretch] = []
        self._at: list[list[int]] = []
        """Of every rank the stretch of each instruction."""
        for rank, operations in enumerate(flow.operations):
            self._cut(rank, operations)
        self._meetings: list[tuple[Operation, ...]] = []
        self._number: dict[Operation, int] = {}
        """Of the first call of each meeting; its node comes behind those of all stretches."""
        for met in flow.meeting.values():
            if met[0] not in self._number:
                self._number[met[0]] = len(self._meetings)
                self._meetings.append(met)
        self.level = self._levels()

    def _cut(self, rank: int, operations: list[Operation]) -> None:
        first, node = 0, len(self.stretches)
        at: list[int] = []
        for place, operation in enumerate(in_time(operations)):
            at.append(node)
            if operation.blocks:
                self.stretches.append(Stretch(rank, tuple(operations[first : place + 1])))
                first, node = place + 1, node + 1
        self.stretches.append(Stretch(rank, tuple(operations[first:])))
        self._at.append(at)

    def _node(self, item: MessageEnd | Operation | None) -> int:
        """The stretch in which a message or call is started."""
        return _NEVER if item is None else self._at[item.rank][item.index]

    def before(self, node: int) -> list[int]:
        """What comes before a stretch: the one before it, and what the last of that waits for.

        Before a meeting come all of its calls.
        """
        count = len(self.stretches)
        if node >= count:
            return [self._node(call) for call in self._meetings[node - count]]
        if not self._follows(node):
            return []
        waiting = self.stretches[node - 1].operations[-1]
        call = None if waiting.awaits else waiting.call
        met = self.flow.meeting.get(call) if call else None
        if met:
            return [node - 1, count + self._number[met[0]]]
        wanted = needs(self.flow, waiting, self.buffered)
        return [node - 1, *[self._node(item) for item in wanted]]

    def _levels(self) -> list[int | None]:
        """Longest way to each node, None for those that are never reached (Kahn's algorithm)."""
        count = len(self.stretches) + len(self._meetings)
        after: list[list[int]] = [[] for _ in range(count)]
        missing = [0] * count
        for node in in_time(range(count)):
            before = self.before(node)
            missing[node] = len(before)
            for earlier in before:
                if earlier != _NEVER:
                    after[earlier].append(node)
        level = [0] * count
        ready = [node for node, count in enumerate(missing) if not count]
        for node in in_time(ready):
            above = level[node] + 1
            for later in after[node]:
                level[later] = max(level[later], above)
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        return [None if count else at for at, count in zip(level, missing, strict=True)]

    def _follows(self, node: int) -> bool:
        """Whether a stretch comes after another of its rank."""
        return node > 0 and self.stretches[node - 1].rank == self.stretches[node].rank

    def order(self) -> list[Stretch]:
        """Stretches that are reached, each after all that it waits for."""
        nodes = [node for node in range(len(self.stretches)) if self.level[node] is not None]
        nodes.sort(key=lambda node: self.level[node] or 0)
        return [self.stretches[node] for node in nodes]

    @property
    def finishes(self) -> bool:
        """Whether every rank comes to its end."""
        return None not in self.level

    def check_order(self, solver: Solver) -> None:
        """Have Z3 check that `level` puts every node after all that it waits for.

        All nodes of one level are one to it: an order of the levels orders the nodes, and a mesh
        of any size asks no more than its longest way. Raises `UnansweredError` if it is none.
        """
        if not self.finishes or solver.has_model(self._disorder()):
            raise UnansweredError("the order that the search found is not one: a bug of this tool")

    def _disorder(self) -> str:
        """Is, of levels that are their numbers, one not after another that it should be after?"""
        level = [at or 0 for at in self.level]
        pairs = {(level[u], level[v]) for v in range(len(level)) for u in self.before(v)}
        levels = sorted({at for pair in pairs for at in pair})
        known = "".join(f"(declare-const at{at} Int)(assert (= at{at} {at}))" for at in levels)
        broken = " ".join(f"(not (< at{earlier} at{later}))" for earlier, later in sorted(pairs))
        return f"{known}(assert (or false {broken}))"

    def circle(self, solver: Solver) -> str:
        """The shortest circle of waiting ranks, as one sentence and one line for each of them.

        Z3 confirms that no order satisfies it and that each of its waits is part of the reason.
        Raises `UnansweredError` if it does not.
        """
        waiting = self._waiting()
        circle = _shortest_circle({rank: [p for p, _ in wants] for rank, (_, wants) in
                                   waiting.items()})  # fmt: skip
        passed = {rank: z3.Int(f"passed{rank}") for rank in circle}
        pairs = list(zip(circle, circle[1:] + circle[:1], strict=True))
        names = {z3.Bool(f"wait{rank}"): passed[peer] < passed[rank] for rank, peer in pairs}
        core = solver.core([z3.Implies(name, claim) for name, claim in names.items()], list(names))
        if core is None or len(core) != len(names):
            raise UnansweredError("the circle that the search found is not one: a bug of this tool")
        lines = []
        for rank, peer in pairs:
            operation, wants = waiting[rank]
            wanted = next(item for other, item in wants if other == peer)
            lines.append(f"  rank {rank} waits in {operation} for rank {peer} to reach {wanted}")
        collective = any(waiting[rank][0].call is not None for rank in circle)
        return "\n".join([_sentence(circle, collective), *lines])

    def _waiting(self) -> dict[int, tuple[Operation, list[tuple[int, MessageEnd | Operation]]]]:
        """Rank -> the operation that it hangs in, and what it waits for on which ranks."""
        hangs = {}
        for node, stretch in enumerate(self.stretches):
            waiting = stretch.waiting
            if self.level[node] is None or waiting is None or self.level[node + 1] is not None:
                continue
            wants = [
                (item.rank, item)
                for item in needs(self.flow, waiting, self.buffered)
                if item is not None and self.level[self._node(item)] is None
            ]
            hangs[stretch.rank] = (waiting, wants)
        return hangs


def _sentence(circle: list[int], collective: bool) -> str:
    mend = (
        "make collective calls and messages in one order on all of their ranks"
        if collective
        else "start both directions of an exchange together, in a group or by isend and irecv "
        "before the waits"
    )
    if len(circle) == 1:
        return f"rank {circle[0]} waits for itself: {mend}"
    shown = [str(rank) for rank in circle[:8]]
    last = shown.pop() if len(circle) <= 8 else f"{len(circle) - 8} more"
    names = f"{', '.join(shown)} and {last}"
    return f"ranks {names} wait for one another in a circle: {mend}"


def _shortest_circle(wants: dict[int, list[int]]) -> list[int]:
    """Shortest circle of a graph that has one, from its lowest node (breadth first from each)."""
    best: list[int] = []
    for start in in_time(sorted(wants)):
        circle = _circle_through(start, wants, len(best) or len(wants) + 1)
        best = circle or best
    return best


def _circle_through(start: int, wants: dict[int, list[int]], limit: int) -> list[int]:
    """Shortest circle through a node, if there is one of fewer nodes than `limit`."""
    way: dict[int, int] = {}
    depth = {start: 0}
    ready = deque([start])
    while ready and start not in way and depth[ready[0]] + 1 < limit:
        node = ready.popleft()
        for later in wants.get(node, ()):
            if later not in way:
                way[later] = node
                depth.setdefault(later, depth[node] + 1)
                ready.append(later)
    if start not in way:
        return []
    circle = [way[start]]
    while circle[-1] != start:
        circle.append(way[circle[-1]])
    return circle[::-1]
