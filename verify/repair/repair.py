"""Finds the fewest moves that make a wrong program pass, and proves the result.

The search is breadth first over moves that its counterexamples suggest. In a cycle of waits a rank
hangs in one instruction and never reaches another: it may start the second one earlier, or the
first one later. Of two calls that do not agree, one may change places with another call of its
communicator. A block in flight that is accessed may be accessed after its wait. For example, if two
ranks send first and receive then, one rank receives first: one move.

A move counts once if a loop repeats it, or if all ranks, or every second one, do the same: that is
one edit in the text that they run. Where a program is small, all moves are tried too, one and then
two of them, so that what is returned is the smallest. Only what `verify_program` proves is
returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from time import perf_counter

from msgspec import Struct
from msgspec.structs import replace

from primepar.schedule.evidence import Counterexample
from primepar.schedule.program import Instruction, Program
from primepar.schedule.program_file import instruction_line
from primepar.schedule.transport import RENDEZVOUS, Transport
from primepar.schedule.words import ranks_text
from primepar.verify.program import verify_program
from primepar.verify.repair.edits import Edit, Order, RankAccesses, moved, reordered
from primepar.verify.report import PropertyResult, Report

MOST_MOVES = 4
NEAR = 8
"""Calls of one communicator that are tried for a call that does not agree with its partner."""
MOST_TRIED = 4_000
"""Orders that are tried when all moves are, not only those that a counterexample suggests."""
Orders = tuple[Order, ...]
Candidate = tuple[Edit, Orders]


class Repair(Struct, frozen=True):
    """A program that passes, the moves that lead to it, and its proof."""

    program: Program
    moves: tuple[Edit, ...]
    report: Report
    is_smallest: bool
    """Whether no fewer moves are enough, as all of them were tried."""


def repair_lines(wrong: Program, repaired: Repair) -> Iterator[str]:
    """The moves of a repair as text, one line each; `wrong` is the program before."""
    for move in repaired.moves:
        rank, source, target = move.places[0]
        nodes = wrong.programs[rank]
        times = max(Counter(rank for rank, _, _ in move.places).values())
        repeated = f", in each of {times} rounds" if times > 1 else ""
        yield (
            f"on {'ranks' if len(move.ranks) > 1 else 'rank'} {ranks_text(move.ranks)}{repeated}: "
            f"move {_named(nodes[source])} {'before' if move.before else 'behind'} "
            f"{_named(nodes[target])}"
        )


def _named(node: Instruction) -> str:
    line = f" at {node.source}" if node.source else ""
    return f"({instruction_line(node)}){line}"


def repair(
    program: Program,
    transport: Transport = RENDEZVOUS,
    seconds: float = 60.0,
    most: int = MOST_MOVES,
) -> Repair | None:
    """Return a repair with few moves that passes on a transport, or None.

    None is the answer if `most` moves of the kinds above are not enough, or `seconds` are over.
    """
    search = _Search(program, transport, perf_counter() + seconds)
    return search.smallest(search.suggested(most))


class _Search:
    def __init__(self, program: Program, transport: Transport, deadline: float) -> None:
        self.program, self.transport, self.deadline = program, transport, deadline
        self.accesses = [RankAccesses(program, rank) for rank in range(program.ranks)]

    def suggested(self, most: int) -> Repair | None:
        """The fewest moves that counterexamples suggest."""
        return self._breadth_first(most, self._suggested_moves)

    def smallest(self, repaired: Repair | None) -> Repair | None:
        """The same, or fewer moves if trying all of them finds fewer."""
        # One move that is enough is the smallest. With more, or none, all single moves and pairs
        # are tried, as the suggestions follow the first counterexample alone.
        fewest = len(repaired.moves) if repaired is not None else 3
        if fewest < 2 and repaired is not None:
            return replace(repaired, is_smallest=True)
        tried = min(2, fewest - 1)
        self.left = MOST_TRIED
        better = self._breadth_first(tried, self._every_move)
        all_tried = self.left > 0 and perf_counter() < self.deadline
        if better is not None:
            return replace(better, is_smallest=all_tried or len(better.moves) < 2)
        return repaired and replace(repaired, is_smallest=all_tried and tried == fewest - 1)

    def _breadth_first(
        self, most: int, moves_from: Callable[[Orders, Report], Iterator[Candidate]]
    ) -> Repair | None:
        start: Orders = tuple(tuple(range(len(nodes))) for nodes in self.program.programs)
        level: list[tuple[Orders, tuple[Edit, ...]]] = [(start, ())]
        seen = {start}
        # By the number of moves, so that the first order that is proved has the fewest.
        for depth in range(most + 1):
            following = []
            for orders, moves in level:
                if perf_counter() > self.deadline:
                    return None
                report = self._report(orders)
                if report.verdict == "proved":
                    return Repair(reordered(self.program, orders), moves, report, False)
                for move, later in moves_from(orders, report) if depth < most else ():
                    if later not in seen:
                        seen.add(later)
                        following.append((later, (*moves, move)))
            level = following
        return None

    def _every_move(self, orders: Orders, _: Report) -> Iterator[Candidate]:
        """Every move of one instruction, as long as there are not too many."""
        for rank, order in enumerate(orders):
            for source, target in permutations(range(len(order)), 2):
                self.left -= 1
                if self.left < 0:
                    return
                candidate = self._applied(orders, rank, (), source, target, source > target)
                if candidate is not None:
                    yield candidate

    def _report(self, orders: Orders) -> Report:
        """The verdict on an order: of deadlock-freedom alone where that already fails."""
        # A cycle is found in a part of the time of a proof, and most orders still have one.
        report = self._verified(orders, "deadlock-freedom")
        return self._verified(orders, None) if report.verdict == "proved" else report

    def _verified(self, orders: Orders, only: str | None) -> Report:
        left = max(0.1, self.deadline - perf_counter())
        program = reordered(self.program, orders)
        return verify_program(program, timeout=left, only=only, transport=self.transport)

    def _suggested_moves(self, orders: Orders, report: Report) -> Iterator[Candidate]:
        for result in report.properties:
            if result.verdict != "refuted" or result.details is None:
                continue
            for rank, source, target, before in self._suggested(orders, result):
                for ranks in self._alike(orders, rank):
                    candidate = self._applied(orders, rank, ranks, source, target, before)
                    if candidate is not None:
                        yield candidate

    def _suggested(
        self, orders: Orders, result: PropertyResult
    ) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (rank, moved place, other place, before), places in the order of now."""
        details = result.details
        assert details is not None
        pairs: Iterator[tuple[int, int, int]] = iter(())
        if details.kind in ("waiting-cycle", "race", "absent-block"):
            pairs = _pairs(details)
        elif details.kind == "mismatch":
            pairs = self._exchanged(orders, details)
        # Of two instructions in a cycle either the later one comes earlier, or the earlier one
        # later.
        for rank, first, second in pairs:
            yield rank, second, first, True
            yield rank, first, second, False

    def _exchanged(self, orders: Orders, details: Counterexample) -> Iterator[tuple[int, int, int]]:
        """Calls of the same communicator near one that does not agree with its partner."""
        for event in details.events:
            if event.index is None:
                continue
            order = orders[event.rank]
            nodes = self.program.programs[event.rank]
            channel = _channel(nodes[order[event.index]])
            alike = [
                place for place, index in enumerate(order) if _channel(nodes[index]) == channel
            ]
            near = alike.index(event.index)
            for place in alike[max(0, near - NEAR) : near + NEAR + 1]:
                if place != event.index:
                    yield event.rank, min(place, event.index), max(place, event.index)

    def _alike(self, orders: Orders, rank: int) -> Iterator[tuple[int, ...]]:
        """Ranks that may be edited together: at one place, one rank, every second one, all."""
        yield ()
        yield (rank,)
        ranks = range(len(orders))
        if len(orders) > 2:
            # Every second rank receives first: the usual repair of a ring in which all send first.
            yield tuple(ranks[rank % 2 :: 2])
            yield tuple(ranks)

    def _applied(
        self, orders: Orders, rank: int, ranks: tuple[int, ...], source: int,
        target: int, before: bool,
    ) -> Candidate | None:  # fmt: skip
        """The orders after a move: at one place, or at each of `ranks` that looks like it."""
        places, later = [], list(orders)
        pairs = list(self._alike_pairs(orders, rank, ranks, source, target))
        wanted = (rank, orders[rank][source], orders[rank][target])
        # The line that is wrong is mostly in a loop, or runs on every rank: each of its instances
        # moves.
        for other, first, second in pairs or [wanted]:
            changed = moved(later[other], first, second, before, self.accesses[other])
            if changed is not None:
                later[other] = changed
                places.append((other, first, second))
        # Where the place of the counterexample cannot move, moves elsewhere are no repair of it.
        return (Edit(tuple(places), before), tuple(later)) if wanted in places else None

    def _alike_pairs(
        self, orders: Orders, rank: int, ranks: tuple[int, ...], source: int, target: int
    ) -> Iterator[tuple[int, int, int]]:
        """(rank, moved, target) wherever two instructions of the same kinds are as far apart."""
        keys, offset = (self._key(rank, orders[rank][source]),
                        self._key(rank, orders[rank][target])), target - source  # fmt: skip
        for other in ranks:
            order = orders[other]
            # A pair that is 2 apart begins 2 places before the end at the latest.
            for place in range(max(0, -offset), len(order) - max(0, offset)):
                pair = order[place], order[place + offset]
                if keys == (self._key(other, pair[0]), self._key(other, pair[1])):
                    yield other, *pair

    def _key(self, rank: int, index: int) -> str:
        """What ranks and rounds of a loop have in common: the line of the text, else its kind."""
        node = self.program.programs[rank][index]
        return node.source or _kind(node)


def _kind(node: Instruction) -> str:
    """An instruction without its peer and without the numbers in its names."""
    text = instruction_line(node)
    # `send I[0,1] to 2` of one round and `send I[0,2] to 3` of the next are one line of a loop.
    return "".join(letter for letter in text if not letter.isdigit())


def _channel(node: Instruction) -> tuple[object, ...]:
    fields = ("communicator", "group", "peer")
    is_call = hasattr(node, "group")
    kind = "call" if is_call else type(node).__name__.removeprefix("I").lower()
    return (kind, *(getattr(node, name, None) for name in fields))


def _pairs(details: Counterexample) -> Iterator[tuple[int, int, int]]:
    """(rank, earlier place, later place) of instructions of one rank in a counterexample."""
    places: dict[int, list[int]] = {}
    for event in details.events:
        if event.index is not None:
            places.setdefault(event.rank, []).append(event.index)
    for rank, indices in places.items():
        for first in indices:
            yield from ((rank, first, second) for second in indices if first < second)
