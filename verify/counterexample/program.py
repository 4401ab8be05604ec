"""Counterexamples of programs, to be drawn: the instructions of a violation, and their causes."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from primepar.schedule.evidence import (
    Absent,
    Arrow,
    Counterexample,
    Cycle,
    Disagreement,
    InvolvedInstruction,
    Kind,
    Leaked,
    Lost,
    Meaning,
    Miscovered,
    Misshapen,
    NotPosted,
    Outsider,
    OverMemory,
    Place,
    Plane,
    Race,
    SharedElements,
    Side,
    Unmatched,
    Violation,
    WrongEnd,
    WrongRead,
    WrongTraffic,
    first_wrong,
    plane_around,
)
from primepar.schedule.matching import Matches
from primepar.schedule.program import Broadcast, Collective, Compute, IRecv, ISend, Recv, Send
from primepar.schedule.program_file import instruction_line
from primepar.schedule.words import MOST_SENT, largest_sent, term_text

MOST_HOPS = 4
"""Messages through which the origin of a block is traced back."""


def of_violation(matches: Matches, violation: Violation) -> Counterexample:
    """Return what a violation of a program involves."""
    return _Drawing(matches).of(violation)


class _Drawing:
    def __init__(self, matches: Matches) -> None:
        self.matches, self.program = matches, matches.program
        self.events: list[InvolvedInstruction] = []
        self.arrows: list[Arrow] = []

    def of(self, violation: Violation) -> Counterexample:
        """The counterexample of a violation: its kind, events, blocks and plane of the grid."""
        kind, blocks = self._draw(violation)
        phase = getattr(violation, "phase", None)
        cell = getattr(violation, "sub_operator", None)
        plane = None
        if isinstance(violation, Miscovered) and not violation.is_outside:
            plane = self._plane(violation.phase, violation.sub_operator)
        elif isinstance(violation, WrongRead | WrongEnd) and violation.data is not None:
            term, _ = first_wrong(violation.data.terms(), term_text)
            if term is not None and term.phase is not None and violation.of == "completion":
                phase, cell = phase or term.phase, cell or term.sub_operator
                origin = violation.origin
                # A product that nobody computes is a hole in the grid, so the grid is drawn. One
                # that was lost on its way is in the grid.
                nowhere = term.got == 0 and (origin is None or origin.sent_from is None)
                if nowhere and term.sub_operator is not None:
                    plane = self._plane(term.phase, term.sub_operator)
        ranks = {event.rank for event in self.events}
        ranks |= {getattr(violation, "rank", None)} - {None}  # type: ignore[arg-type]
        return Counterexample(
            kind, tuple(sorted(ranks)), tuple(dict.fromkeys(blocks)), phase, cell, plane,
            tuple(self.events), tuple(self.arrows),
        )  # fmt: skip

    def _draw(self, violation: Violation) -> tuple[Kind, tuple[str, ...]]:
        """Add the events and arrows of a violation; returns its kind, and its blocks."""
        match violation:
            # Two events for each rank of a cycle: where it hangs, and what the rank before it waits
            # for, which is never reached. Arrows go from the first of one to the second of the
            # next.
            case Cycle(in_order=False, waits=waits):
                for number, (place, _) in enumerate(waits):
                    self._add(place, "hangs", wrong=True)
                    self._add(waits[number - 1][1][:2], "never reached")
                for number in range(len(waits)):
                    after = (number + 1) % len(waits)
                    self._arrow(2 * number, 2 * after + 1, "waits for")
                return "waiting-cycle", ()
            case Cycle(waits=waits):
                places = [place for place, _ in waits]
                self._meet(places[0], places[-1])
                return "mismatch", ()
            case Disagreement(side=side, other=other):
                self._meet(side[:2], other[:2])
                return "mismatch", ()
            case Outsider(side=side):
                self._add(side[:2], wrong=True)
                return "mismatch", ()
            case Unmatched():
                self._unmatched(violation)
                return "no-partner", ()
            case NotPosted(place=place):
                self._add(place, "nothing is in flight", wrong=True)
                return "no-request", ()
            case Race(block=block):
                self._race(violation)
                return "race", (block,)
            case SharedElements(place=place, block=block, other=other_block):
                self._add(place, "touches it", wrong=True)
                return "race", (block, other_block)
            case Leaked(place=place):
                self._add(place, "never waited for", wrong=True)
                return "never-awaited", ()
            case Miscovered(places=places, is_outside=outside):
                for number, place in enumerate(places):
                    self._add(place, "again" * (number > 0), wrong=number > 0 or outside)
                return (
                    "outside-the-grid" if outside else "done-twice" if places else "never-done",
                    (),
                )
            case Absent(place=place, block=block):
                self._read(place, block, "reads it")
                return "absent-block", (block,)
            case Misshapen(place=place):
                self._add(place, "reads it", wrong=True)
                return "wrong-data", ()
            case WrongRead(of="completion", place=place, block=block):
                self._add(place, "to fix", wrong=True)
                self._fix(violation, place)
                return "unfinished-sum", (block,)
            case WrongRead(place=place, block=block, want=want):
                self._read(place, block, f"needs the data of {want}")
                return "wrong-data", (block, want)
            case WrongEnd(block=block, of=of, data=data):
                self._end(violation)
                if of == "completion":
                    return "unfinished-sum", (block,)
                return "wrong-data" if data or violation.memory == "host" else "wrong-place", (
                    block,
                )
            case Lost(block=block):
                self._lost(block)
                return "sum-lost", (block,)
            case OverMemory(place=place):
                if place[1] >= 0:
                    self._add(place, "over the bound", wrong=True)
                return "over-memory", ()
            case WrongTraffic():
                for _, index in largest_sent(violation)[:MOST_SENT]:
                    self._add((violation.rank, index), "leaves here", wrong=True)
                return "wrong-traffic", ()

    def _plane(self, phase: str, cell: dict[str, int]) -> Plane | None:
        """How often each sub-operator near one is computed."""
        grid = (self.program.grid or {}).get(phase)
        if grid is None:
            return None
        counts = Counter(
            tuple(node.sub_operator.get(dim, 0) for dim in grid)
            for nodes in self.program.programs
            for node in nodes
            if isinstance(node, Compute)
            and node.phase == phase
            and node.sub_operator
            and not node.again
        )
        return plane_around(grid, cell, counts)

    def _event(self, place: Place) -> InvolvedInstruction:
        rank, index = place
        nodes = self.program.programs[rank]
        if index >= len(nodes):
            return InvolvedInstruction(rank, "the end")
        node = nodes[index]
        return InvolvedInstruction(rank, instruction_line(node), index, source=node.source)

    def _add(self, place: Place, role: str = "", wrong: bool = False) -> int:
        self.events.append(replace(self._event(place), role=role, wrong=wrong))
        return len(self.events) - 1

    def _arrow(self, source: int, target: int, means: Meaning) -> None:
        self.arrows.append(Arrow(source, target, means))

    def _meet(self, wrong: Place, other: Place) -> None:
        self._arrow(self._add(other), self._add(wrong, wrong=True), "meets")

    def _unmatched(self, violation: Unmatched) -> None:
        """Add a side and the missing other one."""
        self._add(violation.side[:2], "never matched", wrong=True)
        missing = "no matching call is left"
        if not violation.is_call:
            is_receive = isinstance(self.matches.post(violation.side), Recv | IRecv)
            other = "send to" if is_receive else "recv from"
            missing = f"no {other} rank {violation.side[0]} is left"
        self.events.append(InvolvedInstruction(violation.peer, missing, role="missing"))
        self._arrow(0, 1, "waits for")

    def _race(self, race: Race) -> None:
        """Add the post of what is in flight, the access, and the wait."""
        # In one group the post and the access are the same instruction, which is then shown once.
        if race.posted[1] < race.place[1]:
            self._add(race.posted[:2], "posts it")
        touches = self._add(race.place, "touches it", wrong=True)
        if touches:
            self._arrow(0, touches, "in flight")
        ends = self.matches.wait_of(race.posted[:2])
        if ends is not None:
            self._add(ends, "done only here")

    def _fix(self, violation: WrongRead | WrongEnd, besides: Place | None = None) -> None:
        """Add the instruction that made a sum wrong, or that has what is missing."""
        origin = violation.origin
        # Where a term is missing the place to fix is where it is: a message from there is lacking.
        place = None if origin is None else origin.fix or origin.sent_from
        if place is not None and place != besides:
            self._add(place, "to fix", wrong=True)

    def _end(self, violation: WrongEnd) -> None:
        """Add the end of a block that is wrong there, after the places where it is elsewhere."""
        if violation.rank is None:
            return
        self._fix(violation)
        block = violation.block
        strays = violation.data is None and violation.of == "alignment" and violation.holders
        never = False
        if violation.data is not None and violation.of == "completion":
            term, is_common = first_wrong(violation.data.terms(), term_text)
            never = term is not None and term.got == 0 and not is_common
        if strays:
            self.events.append(
                InvolvedInstruction(violation.holders[0], f"at the end {block}", role="it is here")
            )
        # The other rank has the term and did nothing wrong; it is its way that is missing.
        elif never:
            self.events = [replace(event, role="has it", wrong=False) for event in self.events]
        if self.events:
            means: Meaning = "never reaches" if strays or never else "moves to"
            self._arrow(0, len(self.events), means)
        wrong = not any(event.wrong for event in self.events)
        self.events.append(
            InvolvedInstruction(violation.rank, f"at the end {block}", None, "needed here", wrong)
        )

    def _lost(self, block: str) -> None:
        """Add where a block is summed that no rank keeps."""
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.accumulates == block:
                    self._arrow(self._add((rank, index), "sums it"), 1, "never reaches")
                    self.events.append(
                        InvolvedInstruction(rank, "the end", role="no rank keeps it", wrong=True)
                    )
                    return

    def _read(self, place: Place, block: str, role: str) -> None:
        """Add a wrong read, after the way on which the block came there."""
        for event in self._way(place, block):
            self.events.append(event)
            gone = event.text.startswith(("free ", "evict "))
            means: Meaning = "frees" if gone else "moves to"
            self._arrow(len(self.events) - 1, len(self.events), means)
        self._add(place, role, wrong=True)

    def _way(self, before: Place, block: str) -> list[InvolvedInstruction]:
        """How a block came to a rank before an instruction: from its maker, message by message."""
        way: list[InvolvedInstruction] = []
        # From the read back to the last writer; if that was a receive, to its sender, and on from
        # there.
        for _ in range(MOST_HOPS):
            writer = self._writer(before, block)
            if writer is None:
                initial = (self.program.initial or ((),) * self.program.ranks)[before[0]]
                if block in initial:
                    way.insert(0, InvolvedInstruction(before[0], f"initial {block}"))
                return way
            way.insert(0, self._event(writer[:2]))
            source = self._source(writer)
            if source is None:
                return way
            way.insert(0, self._event(source[:2]))
            before, post = source[:2], self.matches.post(source)
            block = post.block if isinstance(post, Send | ISend) else block
        return way

    def _writer(self, before: Place, block: str) -> Side | None:
        """What last wrote or freed a block before an instruction; of a message its receive."""
        rank, end = before
        for index in reversed(range(min(end, len(self.program.programs[rank])))):
            of = self.matches.effects[rank][index]
            # A receive writes at its wait and not at its post: `irecv x; wait; read x` came by the
            # wait.
            for side in reversed(self.matches.awaited((rank, index))):
                post = self.matches.post(side)
                written = self.matches.effects[side[0]][side[1]].writes
                if isinstance(post, Recv | IRecv) and post.block == block:
                    return side
                if isinstance(post, Collective) and block in written:
                    return side
            if not of.posts and block in (*of.writes, *of.frees):
                return rank, index, 0
        return None

    def _source(self, writer: Side) -> Side | None:
        """The other end of a message, or the root of a broadcast."""
        partners = self.matches.partners.get(writer, ())
        if not self.matches.effects[writer[0]][writer[1]].posts:
            return None
        post = self.matches.post(writer)
        if isinstance(post, Recv | IRecv):
            return partners[0] if partners else None
        # Of a sum no one member is the source; of a broadcast it is the root.
        if isinstance(post, Broadcast):
            return next((call for call in partners if call[0] == post.root != writer[0]), None)
        return None
