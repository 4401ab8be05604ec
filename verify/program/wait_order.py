"""The wait graph of a program: an order in which it runs to its end, or a circle of waiting ranks.

The semantics is the strictest: a message is done only when both sides have been posted
(rendezvous), a collective when every member has called. Such a program reaches
its end in every interleaving or in none (Siegel and Avrunin, synchronous executions).

The graph has one node for each stretch of instructions between two waits, and for each collective.
Its levels are found in linear time by removing nodes without predecessors (Kahn's algorithm). If
nodes are left over, the shortest circle among the waiting ranks is the counterexample. The search
is not trusted: Z3 checks the order, or that the circle has none. For example, if ranks 0 and 1 both
send first and receive then, each send waits for a receive after the other send: a circle of two.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import z3

from primepar.verify.deadline import UnansweredError, in_time
from primepar.verify.program.matching import Matching, MessageEnd, Operation, needs
from primepar.verify.program.solver import Solver

_NEVER = -1
Waiting = dict[int, tuple[Operation, list[tuple[int, MessageEnd | Operation]]]]
"""Rank -> the operation that it hangs in, and what it waits for on which ranks."""


class Stretch(NamedTuple):
    """Instructions of one rank that run without waiting; only the last one may wait."""

    rank: int
    operations: tuple[Operation, ...]

    @property
    def waiting(self) -> Operation | None:
        """The operation at the end, if it may have to wait for another rank."""
        last = self.operations[-1] if self.operations else None
        return last if last is not None and last.blocks else None


class Waits:
    """The wait graph of a program: one node for each stretch and for each matched collective."""

    def __init__(self, flow: Matching, buffered: bool) -> None:
        self.flow, self.buffered = flow, buffered
        self.stretches: list[Stretch] = []
        self._nodes: list[list[int]] = []
        """Rank -> for each instruction the node of its stretch."""
        for rank, operations in enumerate(flow.operations):
            self._cut(rank, operations)
        self._collectives: list[tuple[Operation, ...]] = []
        self._number: dict[Operation, int] = {}
        """First call of a collective -> its number; its node follows those of all stretches."""
        for calls in flow.matched_calls.values():
            if calls[0] not in self._number:
                self._number[calls[0]] = len(self._collectives)
                self._collectives.append(calls)
        self.level = self._levels()

    def _cut(self, rank: int, operations: list[Operation]) -> None:
        first, node = 0, len(self.stretches)
        nodes: list[int] = []
        for place, operation in enumerate(in_time(operations)):
            nodes.append(node)
            if operation.blocks:
                self.stretches.append(Stretch(rank, tuple(operations[first : place + 1])))
                first, node = place + 1, node + 1
        self.stretches.append(Stretch(rank, tuple(operations[first:])))
        self._nodes.append(nodes)

    def _node(self, item: MessageEnd | Operation | None) -> int:
        """The stretch in which a message or call is started."""
        return _NEVER if item is None else self._nodes[item.rank][item.index]

    def before(self, node: int) -> list[int]:
        """The predecessors of a node.

        Of a stretch: the stretch before it on its rank, and everything that the last instruction of
        that one waits for. Of a collective: all of its calls.
        """
        count = len(self.stretches)
        if node >= count:
            return [self._node(call) for call in self._collectives[node - count]]
        if not self._follows(node):
            return []
        waiting = self.stretches[node - 1].operations[-1]
        call = None if waiting.awaits else waiting.call
        calls = self.flow.matched_calls.get(call) if call else None
        if calls:
            return [node - 1, count + self._number[calls[0]]]
        awaited = needs(self.flow, waiting, self.buffered)
        return [node - 1, *[self._node(item) for item in awaited]]

    def _levels(self) -> list[int | None]:
        """Longest path to each node; None for those that are never reached (Kahn's algorithm)."""
        count = len(self.stretches) + len(self._collectives)
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
        return [None if count else depth for depth, count in zip(level, missing, strict=True)]

    def _follows(self, node: int) -> bool:
        """Whether a stretch is not the first of its rank."""
        return node > 0 and self.stretches[node - 1].rank == self.stretches[node].rank

    def order(self) -> list[Stretch]:
        """The stretches that are reached, each after everything that it waits for."""
        nodes = [node for node in range(len(self.stretches)) if self.level[node] is not None]
        nodes.sort(key=lambda node: self.level[node] or 0)
        return [self.stretches[node] for node in nodes]

    @property
    def finishes(self) -> bool:
        """Whether every rank reaches its end."""
        return None not in self.level

    def check_order(self, solver: Solver) -> None:
        """Have Z3 check that `level` puts every node after everything that it waits for.

        Z3 compares levels, not nodes: an order of the levels orders the nodes. So the question has
        the size of the longest path. Raises `UnansweredError` if the levels are no order.
        """
        if not self.finishes or solver.has_model(self._disorder()):
            raise UnansweredError("the order that the search found is not one: a bug of this tool")

    def _disorder(self) -> str:
        """SMT-LIB text that is satisfied if some level is not after one that it must follow."""
        level = [depth or 0 for depth in self.level]
        pairs = {(level[u], level[v]) for v in range(len(level)) for u in self.before(v)}
        depths = sorted({depth for pair in pairs for depth in pair})
        known = "".join(
            f"(declare-const level{depth} Int)(assert (= level{depth} {depth}))" for depth in depths
        )
        broken = " ".join(
            f"(not (< level{earlier} level{later}))" for earlier, later in sorted(pairs)
        )
        return f"{known}(assert (or false {broken}))"

    def circle(self, solver: Solver) -> str:
        """The shortest circle of waiting ranks (`circle_of`)."""
        return circle_of(self._waiting(), solver)

    def _waiting(self) -> Waiting:
        """Rank -> the operation that it hangs in, and what it waits for on which ranks."""
        hanging = {}
        for node, stretch in enumerate(self.stretches):
            waiting = stretch.waiting
            if self.level[node] is None or waiting is None or self.level[node + 1] is not None:
                continue
            awaited = [
                (item.rank, item)
                for item in needs(self.flow, waiting, self.buffered)
                if item is not None and self.level[self._node(item)] is None
            ]
            hanging[stretch.rank] = (waiting, awaited)
        return hanging


def circle_of(waiting: Waiting, solver: Solver) -> str:
    """The shortest circle of waiting ranks, as one sentence and one line for each of them.

    Z3 confirms that no order satisfies it and that each of its waits is part of the reason.
    Raises `UnansweredError` if it does not.
    """
    circle = _shortest_circle({rank: [peer for peer, _ in awaited] for rank, (_, awaited) in
                               waiting.items()})  # fmt: skip
    passed = {rank: z3.Int(f"passed{rank}") for rank in circle}
    pairs = list(zip(circle, circle[1:] + circle[:1], strict=True))
    names = {z3.Bool(f"wait{rank}"): passed[peer] < passed[rank] for rank, peer in pairs}
    core = solver.core([z3.Implies(name, claim) for name, claim in names.items()], list(names))
    if core is None or len(core) != len(names):
        raise UnansweredError("the circle that the search found is not one: a bug of this tool")
    lines = []
    for rank, peer in pairs:
        operation, awaited = waiting[rank]
        wanted = next(item for other, item in awaited if other == peer)
        lines.append(f"  rank {rank} waits in {operation} for rank {peer} to reach {wanted}")
    collective = any(waiting[rank][0].call is not None for rank in circle)
    return "\n".join([_sentence(circle, collective), *lines])


def _sentence(circle: list[int], collective: bool) -> str:
    fix = (
        "make collective calls and messages in one order on all of their ranks"
        if collective
        else "start both directions of an exchange together, in a group or by isend and irecv "
        "before the waits"
    )
    if len(circle) == 1:
        return f"rank {circle[0]} waits for itself: {fix}"
    shown = [str(rank) for rank in circle[:8]]
    last = shown.pop() if len(circle) <= 8 else f"{len(circle) - 8} more"
    names = f"{', '.join(shown)} and {last}"
    return f"ranks {names} wait for one another in a circle: {fix}"


def _shortest_circle(awaited: dict[int, list[int]]) -> list[int]:
    """Shortest circle of a graph that has one, from its lowest node (breadth first from each)."""
    best: list[int] = []
    for start in in_time(sorted(awaited)):
        circle = _circle_through(start, awaited, len(best) or len(awaited) + 1)
        best = circle or best
    return best


def _circle_through(start: int, awaited: dict[int, list[int]], limit: int) -> list[int]:
    """Shortest circle through a node, if there is one of fewer nodes than `limit`."""
    predecessor: dict[int, int] = {}
    depth = {start: 0}
    ready = deque([start])
    while ready and start not in predecessor and depth[ready[0]] + 1 < limit:
        node = ready.popleft()
        for later in awaited.get(node, ()):
            if later not in predecessor:
                predecessor[later] = node
                depth.setdefault(later, depth[node] + 1)
                ready.append(later)
    if start not in predecessor:
        return []
    circle = [predecessor[start]]
    while circle[-1] != start:
        circle.append(predecessor[circle[-1]])
    return circle[::-1]
