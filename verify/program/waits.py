"""Who waits for whom: an order in which a program runs to its end, or a circle of waiting ranks.

The strictest semantics: a message is done only when both sides have been posted (rendezvous), a
collective when every member has called. Without wildcards such a program reaches its end in every
interleaving or in none (Siegel and Avrunin, synchronous executions). The search here is linear
and is not trusted: Z3 checks the order that it finds, or that the circle cannot be ordered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import z3

from primepar.verify.deadline import UndecidedError, in_time
from primepar.verify.program.flow import Flow, Operation, Post, needs
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

    def __init__(self, flow: Flow, buffered: bool) -> None:
        self.flow, self.buffered = flow, buffered
        self.stretches: list[Stretch] = []
        self._at: list[list[int]] = []
        """Of every rank the stretch of each instruction."""
        for rank, operations in enumerate(flow.operations):
            self._cut(rank, operations)
        self.before: list[list[int]] = [[] for _ in self.stretches]
        self._meetings: dict[Operation, int] = {}
        for node, stretch in enumerate(in_time(self.stretches)):
            if node and self.stretches[node - 1].rank == stretch.rank:
                self._link(node)
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

    def _node(self, item: Post | Operation | None) -> int:
        """The stretch in which a message or call is started."""
        return _NEVER if item is None else self._at[item.rank][item.index]

    def _link(self, node: int) -> None:
        """Say what comes before a stretch: the one before it, and what its last waits for."""
        waiting = self.stretches[node - 1].operations[-1]
        self.before[node].append(node - 1)
        call = None if waiting.awaits else waiting.call
        met = self.flow.meeting.get(call) if call else None
        if met:
            if met[0] not in self._meetings:
                self._meetings[met[0]] = len(self.before)
                self.before.append([self._node(call) for call in met])
            self.before[node].append(self._meetings[met[0]])
        else:
            self.before[node] += map(self._node, needs(self.flow, waiting, self.buffered))

    def _levels(self) -> list[int | None]:
        """Longest way to each node, None for those that are never reached (Kahn's algorithm)."""
        after: list[list[int]] = [[] for _ in self.before]
        missing = [len(nodes) for nodes in self.before]
        for node, nodes in enumerate(self.before):
            for earlier in nodes:
                if earlier != _NEVER:
                    after[earlier].append(node)
        level = [0] * len(self.before)
        ready = [node for node, count in enumerate(missing) if not count]
        for node in in_time(ready):
            above = level[node] + 1
            for later in after[node]:
                level[later] = max(level[later], above)
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        return [None if count else at for at, count in zip(level, missing, strict=True)]

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
        of any size asks no more than its longest way. Raises `UndecidedError` if it is none.
        """
        if not self.finishes or solver.has_model(_disorder(self.level, self.before)):
            raise UndecidedError("the order that the search found is not one: a bug of this tool")

    def circle(self, solver: Solver) -> str:
        """The shortest circle of waiting ranks, as one sentence and one line for each of them.

        Z3 confirms that no order satisfies it and that each of its waits is part of the reason.
        Raises `UndecidedError` if it does not.
        """
        waiting = self._waiting()
        circle = _shortest_circle({rank: [p for p, _ in wants] for rank, (_, wants) in
                                   waiting.items()})  # fmt: skip
        passed = {rank: z3.Int(f"passed{rank}") for rank in circle}
        pairs = list(zip(circle, circle[1:] + circle[:1], strict=True))
        names = {z3.Bool(f"wait{rank}"): passed[peer] < passed[rank] for rank, peer in pairs}
        core = solver.core([z3.Implies(name, claim) for name, claim in names.items()], list(names))
        if core is None or len(core) != len(names):
            raise UndecidedError("the circle that the search found is not one: a bug of this tool")
        lines = []
        for rank, peer in pairs:
            operation, wants = waiting[rank]
            wanted = next(item for other, item in wants if other == peer)
            lines.append(f"  rank {rank} waits in {operation} for rank {peer} to reach {wanted}")
        collective = any(waiting[rank][0].call is not None for rank in circle)
        return "\n".join([_sentence(circle, collective), *lines])

    def _waiting(self) -> dict[int, tuple[Operation, list[tuple[int, Post | Operation]]]]:
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


def _disorder(level: Sequence[int | None], before: Sequence[Sequence[int]]) -> str:
    """Is, of levels that are their numbers, one not after another that it should be after?"""
    pairs = {(level[u] or 0, level[v] or 0) for v, nodes in enumerate(before) for u in nodes}
    levels = sorted({level for pair in pairs for level in pair})
    known = "".join(f"(declare-const at{at} Int)(assert (= at{at} {at}))" for at in levels)
    broken = " ".join(f"(not (< at{earlier} at{later}))" for earlier, later in sorted(pairs))
    return f"{known}(assert (or false {broken}))"


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
