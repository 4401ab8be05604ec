"""Counterexamples of programs as data: the instructions that a sentence names, and their causes."""

from __future__ import annotations

import re
from collections import Counter

from msgspec.structs import replace

from primepar.schedule.counterexample import (
    Arrow,
    Counterexample,
    InvolvedInstruction,
    Kind,
    Meaning,
    Plane,
    kind_of,
    plane_around,
)
from primepar.schedule.program import Broadcast, Compute, Program, Wait
from primepar.schedule.program_file import instruction_line
from primepar.verify.program.matching import Matching, MessageEnd, Operation
from primepar.verify.program.races import touched

MOST_HOPS = 4
"""Messages through which the origin of a block is traced back."""

_WAIT = re.compile(
    r"^  rank (\d+) waits in instruction (\d+) .* for rank (\d+) to reach instruction (\d+) ", re.M
)
_PLACE = re.compile(r"\brank (\d+), instruction (\d+)\b")
_FINAL = re.compile(r"^rank (\d+), (?:(?:host_)?final (\S+):|(\S+) at the end:)")
_RANK = re.compile(r"\b(?:on )?rank (\d+)\b")
_BLOCKS = (
    r"expected the data of (?P<want>\S+) in (?P<block>\S+) for ",
    r"which reads (?P<block>\S+) for ",
    r"expected (?P<block>\S+) in this rank's ",
    r"expected (?P<block>\S+) to be left alone ",
    r"^(?P<block>\S+): expected it in final ",
    r"^(?P<block>\S+): expected the block on some rank",
    r"^rank \d+, (?:host_)?final (?P<block>\S+):",
)
_SUB_OPERATOR = re.compile(r"(\w+) (?:sub-operator|product) \(([^()]*)\)")
_FLIGHT = re.compile(r"while instruction (\d+) ")
_ROLES: dict[Kind, str] = {
    "no-partner": "never matched", "no-request": "nothing is in flight",
    "never-awaited": "never waited for", "over-memory": "over the bound",
    "unfinished-sum": "to fix", "done-twice": "again",
}  # fmt: skip


def of_program(program: Program, flow: Matching, name: str, sentence: str) -> Counterexample:
    """Return what the sentence of a refuted property names.

    `flow` is the matching of the program; `name` is the property.
    """
    return _Lookup(program, flow, name, sentence).counterexample()


class _Lookup:
    def __init__(self, program: Program, flow: Matching, name: str, sentence: str) -> None:
        self.program, self.flow, self.sentence = program, flow, sentence
        self.kind = kind_of(name, sentence)
        self.events: list[InvolvedInstruction] = []
        self.arrows: list[Arrow] = []
        self.blocks = self._blocks()

    def counterexample(self) -> Counterexample:
        if self.kind == "waiting-circle":
            self._circle()
        else:
            self._add_places()
        named = {int(rank) for rank in _RANK.findall(self.sentence.split(": ", 1)[0])}
        ranks = sorted({event.rank for event in self.events} | named)
        phase, cell = self._cell()
        return Counterexample(
            self.kind,
            tuple(rank for rank in ranks if rank < self.program.ranks),
            self.blocks,
            phase,
            cell,
            self._plane(phase, cell),
            tuple(self.events),
            tuple(self.arrows),
        )

    def _blocks(self) -> tuple[str, ...]:
        for pattern in _BLOCKS:
            match = re.search(pattern, self.sentence)
            if match:
                names = [match["block"], match.groupdict().get("want")]
                return tuple(dict.fromkeys(name for name in names if name))
        return ()

    def _cell(self) -> tuple[str | None, dict[str, int] | None]:
        match = _SUB_OPERATOR.search(self.sentence)
        if match is None:
            return None, None
        pairs = re.findall(r"(\w+)=(\d+)", match[2])
        return match[1], {dim: int(index) for dim, index in pairs}

    def _plane(self, phase: str | None, cell: dict[str, int] | None) -> Plane | None:
        grid = (self.program.grid or {}).get(phase or "")
        nowhere = self.sentence.endswith(("got it never: compute it", "got none: add it"))
        if not (nowhere or self.kind == "done-twice") or grid is None or cell is None:
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

    def _circle(self) -> None:
        waits = [tuple(map(int, match)) for match in _WAIT.findall(self.sentence)]
        for number, (rank, index, _, _) in enumerate(waits):
            _, _, _, wanted = waits[number - 1]
            self._add(rank, index, "hangs", wrong=True)
            self._add(rank, wanted, "never reached")
        for number in range(len(waits)):
            after = (number + 1) % len(waits)
            self._arrow(2 * number, 2 * after + 1, "waits for")

    def _add(self, rank: int, index: int, role: str = "", wrong: bool = False) -> int:
        event = self._event(rank, index)
        self.events.append(replace(event, role=role, wrong=wrong))
        return len(self.events) - 1

    def _arrow(self, source: int, target: int, means: Meaning) -> None:
        self.arrows.append(Arrow(source, target, means))

    def _add_places(self) -> None:
        """Add the places that the sentence names, with the path of the wrong block."""
        places = [(int(rank), int(index)) for rank, index in _PLACE.findall(self.sentence)]
        final = _FINAL.match(self.sentence)
        if self.kind == "race":
            self._race(*places[0])
        elif self.kind in ("wrong-data", "absent-block") and places:
            self._read(*places[0])
        elif self.kind == "mismatch" and len(places) > 1:
            wrong, other = places[:2]
            self._arrow(self._add(*other), self._add(*wrong, wrong=True), "meets")
        else:
            for number, place in enumerate(dict.fromkeys(places)):
                first = self.kind == "done-twice" and number == 0
                self._add(*place, "" if first else _ROLES.get(self.kind, ""), wrong=not first)
        if self.kind == "no-partner" and places:
            self._absent()
        elif self.kind == "sum-lost":
            self._lost(self.blocks[0])
        elif self.kind == "wrong-traffic":
            self._sent()
        elif final:
            self._end(int(final[1]), final[2] or final[3])

    def _lost(self, block: str) -> None:
        """Add where a block is summed that no rank keeps."""
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                if isinstance(node, Compute) and node.accumulates == block:
                    self._arrow(self._add(rank, index, "sums it"), 1, "never reaches")
                    self.events.append(
                        InvolvedInstruction(rank, "the end", role="no rank keeps it", wrong=True)
                    )
                    return

    def _sent(self) -> None:
        """Add the instructions by which most elements are sent."""
        rank = re.match(r"rank (\d+):", self.sentence)
        if rank is None:
            return
        for index in re.findall(r" by instruction (\d+) ", self.sentence):
            self._add(int(rank[1]), int(index), "leaves here", wrong=True)

    def _absent(self) -> None:
        """Add the missing other end."""
        message = re.search(r"expected a (\w+ \w+ rank \d+) on rank (\d+) ", self.sentence)
        call = re.search(r"expected rank (\d+) to make the matching call", self.sentence)
        if message:
            self.events.append(
                InvolvedInstruction(int(message[2]), f"no {message[1]} is left", role="missing")
            )
        elif call:
            self.events.append(
                InvolvedInstruction(int(call[1]), "no matching call is left", role="missing")
            )
        if message or call:
            self._arrow(0, 1, "waits for")

    def _race(self, rank: int, index: int) -> None:
        posted = _FLIGHT.search(self.sentence)
        if posted and int(posted[1]) < index:
            self._add(rank, int(posted[1]), "posts it")
        touches = self._add(rank, index, "touches it", wrong=True)
        ends = self._wait_of(rank, int(posted[1])) if posted else None
        if touches:
            self._arrow(0, touches, "in flight")
        if ends is not None:
            self._add(rank, ends, "done only here")

    def _wait_of(self, rank: int, posted: int) -> int | None:
        """The index of the wait that completes what an instruction posts."""
        for operation in self.flow.operations[rank]:
            awaited = [post.index for post in operation.awaits]
            if operation.posted is not None:
                awaited.append(operation.posted.index)
            in_list = operation.index < len(self.program.programs[rank])
            if posted in awaited and isinstance(operation.instruction, Wait) and in_list:
                return operation.index
        return None

    def _read(self, rank: int, index: int) -> None:
        for event in self._way(rank, index, self.blocks[0] if self.blocks else ""):
            self.events.append(event)
            gone = event.text.startswith(("free ", "evict "))
            means: Meaning = "frees" if gone else "moves to"
            self._arrow(len(self.events) - 1, len(self.events), means)
        needed = f"needs the data of {self.blocks[-1]}" if self.blocks else ""
        reads = self.kind == "absent-block" or not needed
        self._add(rank, index, "reads it" if reads else needed, wrong=True)

    def _end(self, rank: int, block: str) -> None:
        """Add the end of a block that is wrong there, after the places where it is elsewhere."""
        elsewhere = re.search(r"got it on rank (\d+)", self.sentence)
        if elsewhere:
            self.events.append(
                InvolvedInstruction(int(elsewhere[1]), f"at the end {block}", role="it is here")
            )
        elif "got it never" in self.sentence:
            self.events = [replace(event, role="has it", wrong=False) for event in self.events]
        if self.events:
            lost = elsewhere is not None or "got it never" in self.sentence
            self._arrow(0, len(self.events), "never reaches" if lost else "moves to")
        wrong = not any(event.wrong for event in self.events)
        self.events.append(
            InvolvedInstruction(rank, f"at the end {block}", role="needed here", wrong=wrong)
        )

    def _way(self, rank: int, before: int, block: str) -> list[InvolvedInstruction]:
        """How a block came to a rank before an instruction: from its maker, message by message."""
        way: list[InvolvedInstruction] = []
        for _ in range(MOST_HOPS):
            writer = self._writer(rank, before, block)
            if writer is None:
                initial = (self.program.initial or ((),) * self.program.ranks)[rank]
                if block in initial:
                    way.insert(0, InvolvedInstruction(rank, f"initial {block}"))
                return way
            way.insert(0, self._event(rank, writer.index))
            source = self._source(writer)
            if source is None:
                return way
            way.insert(0, self._event(source.rank, source.index))
            rank, before = source.rank, source.index
            block = getattr(getattr(source, "message", None), "block", block)
        return way

    def _event(self, rank: int, index: int) -> InvolvedInstruction:
        nodes = self.program.programs[rank]
        if index >= len(nodes):
            return InvolvedInstruction(rank, "the end")
        node = nodes[index]
        return InvolvedInstruction(rank, instruction_line(node), index, source=node.source)

    def _writer(self, rank: int, before: int, block: str) -> Operation | MessageEnd | None:
        """What last wrote a block before an instruction: a receive, collective or product."""
        writer: Operation | MessageEnd | None = None
        for operation in self.flow.operations[rank]:
            if operation.index >= before:
                break
            for post in operation.awaits:
                if not post.sends and post.message.block == block:
                    writer = post
            call = operation.call
            if call is not None and block in touched(call.instruction, rank).writes:
                writer = call
            elif not operation.posts and block in touched(operation.instruction, rank).writes:
                writer = operation
        return writer

    def _source(self, writer: Operation | MessageEnd) -> Operation | MessageEnd | None:
        """The other end of a message, or the root of a broadcast."""
        if isinstance(writer, MessageEnd):
            return writer.partner
        node = writer.instruction
        if isinstance(node, Broadcast):
            calls = self.flow.matched_calls.get(writer, ())
            return next((call for call in calls if call.rank == node.root != writer.rank), None)
        return None
