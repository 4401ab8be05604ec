"""The abstract machine of the explorer: ranks, with messages and collectives between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    Send,
    Wait,
    disputed,
)
from primepar.schedule.program_uses import initial_blocks
from primepar.verify.explorer.blocks import RankMemories
from primepar.verify.explorer.collectives import (
    Call,
    agree,
    body,
    inputs,
    members,
    outputs,
    results,
)
from primepar.verify.explorer.contents import ZERO, CellSums
from primepar.verify.explorer.names import BlockNames
from primepar.verify.explorer.state import Channel, Flight, Key, RankState, Side


@dataclass
class Machine(RankMemories):
    """One state; `advance` and `deliver` are its moves."""

    sides: dict[Channel, tuple[list[Side], list[Side]]] = field(default_factory=dict)
    delivered: dict[Channel, int] = field(default_factory=dict)
    calls: dict[Key, dict[int, list[Call]]] = field(default_factory=dict)
    both: set[Channel] = field(default_factory=set)
    """Channels whose next message is posted on both sides."""

    @classmethod
    def of(cls, program: Program, buffered: bool) -> Machine:
        """The state before the first instruction."""
        machine = cls(BlockNames(program), buffered, [RankState() for _ in range(program.ranks)])
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
            {c: (list(a), list(b)) for c, (a, b) in self.sides.items()}, dict(self.delivered),
            {k: {r: list(c) for r, c in by.items()} for k, by in self.calls.items()},
            set(self.both), failed=self.failed,
        )  # fmt: skip

    def key(self) -> tuple[Any, ...]:
        """A key that is equal for equal states."""
        ranks = tuple(
            (r.index, r.inside, frozenset(r.memory.items()), frozenset(r.host.items()))
            for r in self.ranks
        )
        return ranks, frozenset(self.delivered.items()), self.failed

    def stuck(self) -> list[tuple[int, int]]:
        """(rank, instruction index) of the ranks that have not finished."""
        lengths = map(len, self.program.programs)
        states = enumerate(zip(self.ranks, lengths, strict=True))
        return [(rank, state.index) for rank, (state, length) in states if state.index < length]

    # Messages

    def ready(self) -> list[Channel]:
        """Channels whose next message has both sides and one tag."""
        channels = []
        for channel in sorted(self.both):
            (sends, receives), n = self.sides[channel], self.delivered.get(channel, 0)
            sent, received = sends[n].message, receives[n].message
            if sent.tag == received.tag and disputed((sent, received)) is None:
                channels.append(channel)
        return channels

    def deliver(self, channel: Channel) -> None:
        """Deliver a channel's next message, with what the sent block holds now."""
        n = self.delivered.get(channel, 0)
        send, receive = self.sides[channel][0][n], self.sides[channel][1][n]
        held = self.ranks[send.rank].memory.get(send.message.block, ZERO)
        content = held if send.payload is None else send.payload
        self._write(receive.rank, receive.message.block, content)
        self.delivered[channel] = n + 1
        self._note(channel)

    def _note(self, channel: Channel) -> None:
        """Record whether both sides of the next message are posted."""
        more = self.delivered.get(channel, 0) < min(map(len, self.sides[channel]))
        (self.both.add if more else self.both.discard)(channel)

    def unmatched(self) -> bool:
        """Whether a message has only one side, or a collective lacks a member."""
        return any(
            self.delivered.get(c, 0) < max(len(a), len(b)) for c, (a, b) in self.sides.items()
        ) or any(
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
            state.inside = isinstance(node, Send | Recv | Group | Wait | Collective)
            state.inside &= getattr(node, "request", None) is None or isinstance(node, Wait)
        elif self._returns(rank, node):
            state.inside = False
            state.aligning &= isinstance(node, Send)
        else:
            return False
        state.index += not state.inside
        return True

    def _start(self, rank: int, node: Instruction) -> None:
        match node:
            case ISend() | IRecv():
                self._post(rank, node, node.request)
            case Send() | Recv() | Group():
                for part, message in enumerate(body(node)):
                    self._post(rank, message, part)
            case Wait():
                pass
            case _ if isinstance(node, Collective):
                self._call(rank, node)
            case _:
                self._local(rank, node)

    def _returns(self, rank: int, node: Instruction) -> bool:
        state = self.ranks[rank]
        if isinstance(node, Collective):
            return self._meet(rank, node, len(self.calls[members(node)][rank]) - 1)
        names: list[str | int] = (
            [node.request] if isinstance(node, Wait) else list(range(len(body(node))))
        )
        if any(name not in state.in_flight for name in names):
            return False
        if not all(self._done(rank, state.in_flight[name]) for name in names):
            return False
        for name in names:
            del state.in_flight[name]
        return True

    def _done(self, rank: int, flight: Flight) -> bool:
        """Whether a post is complete; a collective then writes its results."""
        if flight.node is not None:
            return self._meet(rank, flight.node, flight.number)
        assert flight.channel is not None
        done = self.delivered.get(flight.channel, 0) > flight.number
        return done or (bool(flight.reads) and self.buffered)

    def _end(self, rank: int) -> bool:
        """Complete a collective that is never waited for; False if there is none."""
        in_flight = self.ranks[rank].in_flight
        for name, flight in in_flight.items():
            if flight.node is not None and self._meet(rank, flight.node, flight.number):
                self._fail("races")
                del in_flight[name]
                return True
        return False

    def _put_in_flight(self, rank: int, name: str | int, flight: Flight) -> None:
        in_flight = self.ranks[rank].in_flight
        if name in in_flight:
            # Nothing can wait for the older request any more: it stays in flight.
            self._fail("races")
            in_flight[f"lost {len(in_flight)} {name}"] = in_flight.pop(name)
        in_flight[name] = flight

    def _post(self, rank: int, message: Message, name: str | int) -> None:
        sends, block = isinstance(message, Send | ISend), message.block
        reads, writes = ((block,), ()) if sends else ((), (block,))
        self._touch(rank, reads, writes)
        ends = (rank, message.peer) if sends else (message.peer, rank)
        channel = (*ends, message.communicator)
        queue = self.sides.setdefault(channel, ([], []))[not sends]
        side = Side(rank, message)
        if sends:
            content = self._take(rank, block)
            side.payload = content if self.buffered else None
        self._put_in_flight(rank, name, Flight(reads, writes, len(queue), channel))
        queue.append(side)
        self._note(channel)

    # Collectives

    def _call(self, rank: int, node: Collective) -> None:
        reads, writes = inputs(node, rank), outputs(node, rank)
        self._touch(rank, reads, writes)
        if self.names.overlap(writes):
            self._fail("races")
        given = [self._take(rank, block) for block in reads]
        calls = self.calls.setdefault(members(node), {}).setdefault(rank, [])
        if node.request is not None:
            self._put_in_flight(rank, node.request, Flight(reads, writes, len(calls), node=node))
        calls.append((node, given))

    def _contributions(self, key: Key, number: int) -> dict[int, list[CellSums]] | None:
        """Member -> its inputs to a call, once all have made the same one; None before."""
        calls = self.calls[key]
        made = {member: calls.get(member, [])[number : number + 1] for member in key[1]}
        if not all(made.values()) or not agree([call[0][0] for call in made.values()]):
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
