"""The abstract machine of the explorer: ranks, with messages and collectives between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any

from oracle.blocks import RankMemories
from oracle.collectives import Call, agree, inputs, members, outputs, results
from oracle.contents import ZERO, CellSums
from oracle.mailboxes import Mailboxes, Pair, Side, is_disputed
from oracle.names import BlockNames
from oracle.state import Flight, Key, Part, RankState
from primepar.schedule.effects import initial_blocks
from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    Message,
    Program,
    Recv,
    Send,
    Wait,
    messages_of,
)

_WAITING = Send | Recv | Group | Wait | Collective


@dataclass
class Machine(RankMemories):
    """One state; `advance` and `deliver` are its moves."""

    mailboxes: Mailboxes = field(default_factory=lambda: Mailboxes({}))
    calls: dict[Key, dict[int, list[Call]]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, buffered: bool) -> Machine:
        """The state before the first instruction."""
        states = [RankState() for _ in range(program.ranks)]
        machine = cls(BlockNames(program), buffered, states)
        for rank, blocks in enumerate(program.initial or ()):
            for block in blocks:
                machine._load_initial(rank, block)
        for rank, blocks in enumerate(program.host_initial or ()):
            for block in blocks:
                machine._load_host(rank, block)
        if program.initial is None:
            for block in chain.from_iterable(initial_blocks(program)):
                machine._note_before(block)
        return machine

    @property
    def program(self) -> Program:
        """The program that is run."""
        return self.names.program

    def copy(self) -> Machine:
        """Another machine in the same state."""
        return Machine(
            self.names, self.buffered, [rank.copy() for rank in self.ranks], self.before,
            self.mailboxes.copy(),
            {k: {r: list(c) for r, c in by.items()} for k, by in self.calls.items()},
            failed=self.failed, finished=self.finished,
        )  # fmt: skip

    def key(self) -> tuple[Any, ...]:
        """A key that is equal for equal states."""
        ranks = tuple(
            (r.index, r.inside, frozenset(r.memory.items()), frozenset(r.host.items()))
            for r in self.ranks
        )
        return ranks, frozenset(self.mailboxes.undelivered), self.failed

    def stuck(self) -> list[tuple[int, int]]:
        """(rank, instruction index) of the ranks that have not finished."""
        lengths = map(len, self.program.programs)
        states = enumerate(zip(self.ranks, lengths, strict=True))
        return [(rank, state.index) for rank, (state, length) in states if state.index < length]

    # Messages

    def ready(self) -> list[Pair]:
        """Messages that may be delivered next: both sides are posted, fit, and dispute nothing."""
        pairs = [pair for _, pair in sorted(self.mailboxes.ready.items(), key=itemgetter(0))]
        return [pair for pair in pairs if not self._is_disputed(pair)]

    def _is_disputed(self, pair: Pair) -> bool:
        return is_disputed(pair, self.names.meaning.elements)

    def deliver(self, pair: Pair) -> None:
        """Deliver a message, with what the sent block holds now."""
        send, receive = pair
        content = send.payload
        if content is None:
            content = self.ranks[send.rank].memory.get(send.message.block, ZERO)
        self._write(receive.rank, receive.message.block, content)
        self._note_dispute(self.mailboxes.remove(pair))

    def _note_dispute(self, pair: Pair | None) -> None:
        """Record that two sides that now meet dispute something: no order of events helps."""
        if pair is not None and self._is_disputed(pair):
            self._fail("deadlock-freedom")

    def unmatched(self) -> bool:
        """Whether a message has only one side, or a collective lacks a member."""
        return bool(self.mailboxes.undelivered) or any(
            not set(calls) <= set(key[1]) or self._contributions(key, number) is None
            for key, calls in self.calls.items()
            for number in range(max(map(len, calls.values())))
        )

    # One rank

    def advance(self, rank: int) -> bool:
        """Let a rank start its next instruction, or return from it; False if it cannot."""
        state = self.ranks[rank]
        if state.index >= len(self.program.programs[rank]):
            return self._end(rank)
        node = self.program.programs[rank][state.index]
        if not state.inside:
            self._start(rank, node)
            state.inside = isinstance(node, Wait) or (
                isinstance(node, _WAITING) and getattr(node, "request", None) is None
            )
        elif self._returns(rank, node):
            state.inside = False
            state.aligning &= isinstance(node, Send)
        else:
            return False
        state.index += not state.inside
        return True

    def _start(self, rank: int, node: Instruction) -> None:
        request: str | None = getattr(node, "request", None)
        if isinstance(node, Wait):
            return
        if request is not None:
            self._lose(rank, request)
        if isinstance(node, Collective):
            self._call(rank, node)
        elif messages_of(node):
            for number, message in enumerate(messages_of(node)):
                self._post(rank, message, Part(request, number))
        else:
            self._local(rank, node)

    def _awaited(self, rank: int, node: Instruction) -> list[Part]:
        """What an instruction waits for; of an unknown request, what is never done."""
        if isinstance(node, Wait):
            posted = self.ranks[rank].in_flight
            return [part for part in posted if part.request == node.request] or [Part("", -1)]
        return [Part(None, number) for number in range(len(messages_of(node)))]

    def _returns(self, rank: int, node: Instruction) -> bool:
        state = self.ranks[rank]
        if isinstance(node, Collective):
            return self._meet(rank, node, len(self.calls[members(node)][rank]) - 1)
        parts = self._awaited(rank, node)
        flights = [state.in_flight.get(part) for part in parts]
        if not all(flight is not None and self._done(rank, flight) for flight in flights):
            return False
        for part in parts:
            del state.in_flight[part]
        return True

    def _done(self, rank: int, flight: Flight) -> bool:
        """Whether a post is complete; a collective then writes its results."""
        if flight.node is not None:
            return self._meet(rank, flight.node, flight.number)
        side = flight.side
        return side is not None and (
            side.payload is not None or side.name not in self.mailboxes.undelivered
        )

    def _end(self, rank: int) -> bool:
        """Complete a collective that is never waited for; False if there is none."""
        in_flight = self.ranks[rank].in_flight
        for part, flight in in_flight.items():
            if flight.node is not None and self._meet(rank, flight.node, flight.number):
                self._fail("races")
                del in_flight[part]
                return True
        return False

    def _lose(self, rank: int, request: str) -> None:
        """Keep in flight what an older post of this request started: nothing waits for it."""
        in_flight = self.ranks[rank].in_flight
        for part in [part for part in in_flight if part.request == request]:
            self._fail("races")
            in_flight[Part(f"{request} ", len(in_flight))] = in_flight.pop(part)

    def _post(self, rank: int, message: Message, part: Part) -> None:
        state, block = self.ranks[rank], message.block
        side = Side(rank, state.posted, message)
        state.posted += 1
        reads, writes = ((block,), ()) if side.sends else ((), (block,))
        self._touch(rank, reads, writes)
        if side.sends:
            content = self._take(rank, block)
            if self.buffered:
                side = side._replace(payload=content)
        state.in_flight[part] = Flight(reads, writes, 0, side)
        self._note_dispute(self.mailboxes.post(side))

    # Collectives

    def _call(self, rank: int, node: Collective) -> None:
        reads, writes = inputs(node, rank), outputs(node, rank)
        self._touch(rank, reads, writes)
        if self.names.overlap(writes):
            self._fail("races")
        given = [self._take(rank, block) for block in reads]
        calls = self.calls.setdefault(members(node), {}).setdefault(rank, [])
        calls.append((node, given))
        if node.request is not None:
            flight = Flight(reads, writes, len(calls) - 1, node=node)
            self.ranks[rank].in_flight[Part(node.request, 0)] = flight

    def _contributions(self, key: Key, number: int) -> dict[int, list[CellSums]] | None:
        """Member -> its inputs to a call, once all have made the same one; None before."""
        calls = self.calls[key]
        made = {member: calls.get(member, [])[number : number + 1] for member in key[1]}
        if not all(made.values()):
            return None
        nodes = {member: call[0][0] for member, call in made.items()}
        if not agree(nodes, self.names.meaning.elements):
            return None
        return {member: call[0][1] for member, call in made.items()}

    def _meet(self, rank: int, node: Collective, number: int) -> bool:
        """Return from a collective if all members have made the same call."""
        given = self._contributions(members(node), number) if rank in node.group else None
        if given is None:
            return False
        for block, content in zip(outputs(node, rank), results(node, rank, given), strict=True):
            self._write(rank, block, content)
        return True
