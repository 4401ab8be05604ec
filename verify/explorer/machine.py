"""The machine that the explorer runs: ranks, and messages and collectives between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.verify.explorer.blocks import RankMemories
from primepar.verify.explorer.collectives import (
    Call,
    agree,
    body,
    gets,
    gives,
    members,
    results,
)
from primepar.verify.explorer.contents import ZERO, CellSums
from primepar.verify.explorer.names import BlockNames
from primepar.verify.explorer.state import Channel, Flight, Key, RankState, Side


@dataclass
class Machine(RankMemories):
    """One state; `go` and `carry` are its moves."""

    sides: dict[Channel, tuple[list[Side], list[Side]]] = field(default_factory=dict)
    carried: dict[Channel, int] = field(default_factory=dict)
    calls: dict[Key, dict[int, list[Call]]] = field(default_factory=dict)
    both: set[Channel] = field(default_factory=set)
    """Channels whose next message has been posted on both sides."""

    @classmethod
    def of(cls, program: Program, buffered: bool) -> Machine:
        """The state before the first instruction."""
        machine = cls(BlockNames(program), buffered, [RankState() for _ in range(program.ranks)])
        for rank, blocks in enumerate(program.initial or ()):
            for block in blocks:
                machine._bring(rank, block)
        return machine

    @property
    def program(self) -> Program:
        """What is run."""
        return self.names.program

    def copy(self) -> Machine:
        """Another machine in the same state."""
        return Machine(
            self.names, self.buffered, [rank.copy() for rank in self.ranks], self.before,
            {c: (list(a), list(b)) for c, (a, b) in self.sides.items()}, dict(self.carried),
            {k: {r: list(c) for r, c in by.items()} for k, by in self.calls.items()},
            set(self.both), failed=self.failed,
        )  # fmt: skip

    def key(self) -> tuple[Any, ...]:
        """What tells two states apart."""
        ranks = tuple(
            (r.at, r.inside, frozenset(r.memory.items()), frozenset(r.host.items()))
            for r in self.ranks
        )
        return ranks, frozenset(self.carried.items()), self.failed

    def stuck(self) -> list[tuple[int, int]]:
        """(rank, instruction index) of the ranks that have not come to their end."""
        return [(n, r.at) for n, r in enumerate(self.ranks) if r.at < len(self.program.programs[n])]

    # Messages

    def ready(self) -> list[Channel]:
        """Channels whose next message has both sides and one tag."""
        found = []
        for channel in sorted(self.both):
            (sends, receives), n = self.sides[channel], self.carried.get(channel, 0)
            if sends[n].tag == receives[n].tag:
                found.append(channel)
        return found

    def carry(self, channel: Channel) -> None:
        """Carry a channel's next message over: what lies in the sent block now goes."""
        n = self.carried.get(channel, 0)
        send, receive = self.sides[channel][0][n], self.sides[channel][1][n]
        held = self.ranks[send.rank].memory.get(send.block, ZERO)
        content = held if send.payload is None else send.payload
        self._write(receive.rank, receive.block, content)
        self.carried[channel] = n + 1
        self._note(channel)

    def _note(self, channel: Channel) -> None:
        """Keep in mind whether both sides of the next message are there."""
        more = self.carried.get(channel, 0) < min(map(len, self.sides[channel]))
        (self.both.add if more else self.both.discard)(channel)

    def unmatched(self) -> bool:
        """Whether a message is left with one side, or a collective without a member."""
        return any(
            self.carried.get(c, 0) < max(len(a), len(b)) for c, (a, b) in self.sides.items()
        ) or any(
            not set(calls) <= set(key[1]) or self._met(key, number) is None
            for key, calls in self.calls.items()
            for number in range(max(map(len, calls.values())))
        )

    # One rank

    def go(self, rank: int) -> bool:
        """Let a rank start its next instruction, or return from it; False if it cannot."""
        own = self.ranks[rank]
        if own.at >= len(self.program.programs[rank]):
            return self._end(rank)
        node = self.program.programs[rank][own.at]
        if not own.inside:
            self._start(rank, node)
            own.inside = isinstance(node, Send | Recv | Group | Wait | Collective)
            own.inside &= getattr(node, "request", None) is None or isinstance(node, Wait)
        elif self._returns(rank, node):
            own.inside = False
            own.aligning &= isinstance(node, Send)
        else:
            return False
        own.at += not own.inside
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
        own = self.ranks[rank]
        if isinstance(node, Collective):
            return self._meet(rank, node, len(self.calls[members(node)][rank]) - 1)
        names: list[str | int] = (
            [node.request] if isinstance(node, Wait) else list(range(len(body(node))))
        )
        if any(name not in own.flying for name in names):
            return False
        if not all(self._done(rank, own.flying[name]) for name in names):
            return False
        for name in names:
            del own.flying[name]
        return True

    def _done(self, rank: int, flight: Flight) -> bool:
        """Whether what is posted is over; a collective then brings its results."""
        if flight.node is not None:
            return self._meet(rank, flight.node, flight.number)
        assert flight.channel is not None
        over = self.carried.get(flight.channel, 0) > flight.number
        return over or (bool(flight.reads) and self.buffered)

    def _end(self, rank: int) -> bool:
        """Bring the results of a collective that is never waited for; False if there is none."""
        flying = self.ranks[rank].flying
        for name, flight in flying.items():
            if flight.node is not None and self._meet(rank, flight.node, flight.number):
                self._fail("races")
                del flying[name]
                return True
        return False

    def _fly(self, rank: int, name: str | int, flight: Flight) -> None:
        flying = self.ranks[rank].flying
        if name in flying:
            # The older request can no longer be waited for: it stays in flight for ever.
            self._fail("races")
            flying[f"lost {len(flying)} {name}"] = flying.pop(name)
        flying[name] = flight

    def _post(self, rank: int, message: Send | Recv | ISend | IRecv, name: str | int) -> None:
        sends, block = isinstance(message, Send | ISend), message.block
        reads, writes = ((block,), ()) if sends else ((), (block,))
        self._touch(rank, reads, writes)
        ends = (rank, message.peer) if sends else (message.peer, rank)
        channel = (*ends, message.communicator)
        line = self.sides.setdefault(channel, ([], []))[not sends]
        side = Side(rank, block, message.tag)
        if sends:
            content = self._take(rank, block)
            side.payload = content if self.buffered else None
        self._fly(rank, name, Flight(reads, writes, len(line), channel))
        line.append(side)
        self._note(channel)

    # Collectives

    def _call(self, rank: int, node: Collective) -> None:
        reads, writes = gives(node, rank), gets(node, rank)
        self._touch(rank, reads, writes)
        if self.names.overlap(writes):
            self._fail("races")
        given = [self._take(rank, block) for block in reads]
        calls = self.calls.setdefault(members(node), {}).setdefault(rank, [])
        if node.request is not None:
            self._fly(rank, node.request, Flight(reads, writes, len(calls), node=node))
        calls.append((node, given))

    def _met(self, key: Key, number: int) -> dict[int, list[CellSums]] | None:
        """What each member gives to a call, once all have made the same one."""
        calls = self.calls[key]
        met = {member: calls.get(member, [])[number : number + 1] for member in key[1]}
        if not all(met.values()) or not agree([call[0][0] for call in met.values()]):
            return None
        return {member: call[0][1] for member, call in met.items()}

    def _meet(self, rank: int, node: Collective, number: int) -> bool:
        """Return from a collective if all members have made the same call."""
        given = self._met(members(node), number) if rank in node.group else None
        if given is None:
            return False
        for block, content in zip(gets(node, rank), results(node, rank, given), strict=True):
            self._write(rank, block, content)
        return True
