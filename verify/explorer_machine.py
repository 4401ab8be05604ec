"""The machine that the explorer runs: ranks, their memories, and messages between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.verify.explorer_contents import (
    Call,
    Content,
    agree,
    body,
    gets,
    gives,
    members,
    operands,
    own_data,
    results,
)
from primepar.verify.explorer_state import Channel, Flight, Key, RankState, Side


@dataclass
class Machine:
    """One state; `go` and `carry` are its moves."""

    program: Program
    buffered: bool
    ranks: list[RankState]
    sides: dict[Channel, tuple[list[Side], list[Side]]] = field(default_factory=dict)
    carried: dict[Channel, int] = field(default_factory=dict)
    calls: dict[Key, dict[int, list[Call]]] = field(default_factory=dict)
    before: set[str] = field(default_factory=set)
    failed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, program: Program, buffered: bool) -> Machine:
        """The state before the first instruction."""
        machine = cls(program, buffered, [RankState() for _ in range(program.ranks)])
        for rank, blocks in enumerate(program.initial or ()):
            for block in blocks:
                machine._bring(rank, block)
        return machine

    def copy(self) -> Machine:
        """Another machine in the same state."""
        return Machine(
            self.program, self.buffered, [rank.copy() for rank in self.ranks],
            {c: (list(a), list(b)) for c, (a, b) in self.sides.items()}, dict(self.carried),
            {k: {r: list(c) for r, c in by.items()} for k, by in self.calls.items()},
            set(self.before), self.failed,
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
        for channel, (sends, receives) in self.sides.items():
            n = self.carried.get(channel, 0)
            if n < min(len(sends), len(receives)) and sends[n].tag == receives[n].tag:
                found.append(channel)
        return found

    def carry(self, channel: Channel) -> None:
        """Carry a channel's next message over: what lies in the sent block now goes."""
        n = self.carried.get(channel, 0)
        send, receive = self.sides[channel][0][n], self.sides[channel][1][n]
        held = self.ranks[send.rank].memory.get(send.block, frozenset())
        content = held if send.payload is None else send.payload
        self._write(receive.rank, receive.block, content)
        self.carried[channel] = n + 1

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
            case Compute():
                self._compute(rank, node)
            case ISend() | IRecv():
                self._post(rank, node, node.request)
            case Send() | Recv() | Group():
                for part, message in enumerate(body(node)):
                    self._post(rank, message, part)
            case Alloc(block=block):
                self._touch(rank, (), (block,))
                self._write(rank, block, frozenset())
            case Free(block=block) | Evict(block=block):
                self._touch(rank, (), (block,))
                content = self._read(rank, block, "placement", self._races(rank, block, True))
                del self.ranks[rank].memory[block]
                if isinstance(node, Evict):
                    self.ranks[rank].host[block] = content
            case Fetch(block=block):
                self._touch(rank, (), (block,))
                self._fetch(rank, block)
            case Wait():
                pass
            case _:
                self._call(rank, node)

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
                self.failed |= {"races"}
                del flying[name]
                return True
        return False

    def _fly(self, rank: int, name: str | int, flight: Flight) -> None:
        flying = self.ranks[rank].flying
        if name in flying:
            # The older request can no longer be waited for: it stays in flight for ever.
            self.failed |= {"races"}
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
            content = self._read(rank, block, "placement", self._races(rank, block, False))
            side.payload = content if self.buffered else None
        self._fly(rank, name, Flight(reads, writes, len(line), channel))
        line.append(side)

    # Blocks

    def _races(self, rank: int, block: str, write: bool) -> bool:
        flying = self.ranks[rank].flying.values()
        return any(block in each.writes or (write and block in each.reads) for each in flying)

    def _touch(self, rank: int, reads: Iterable[str], writes: Iterable[str]) -> None:
        wrong = any(self._races(rank, block, False) for block in reads)
        if wrong or any(self._races(rank, block, True) for block in writes):
            self.failed |= {"races"}

    def _write(self, rank: int, block: str, content: Content) -> None:
        self.ranks[rank].memory[block] = content
        self.ranks[rank].known.add(block)

    def _bring(self, rank: int, block: str) -> None:
        self.before.add(block)
        self._write(rank, block, own_data(self.program, block))

    def _read(self, rank: int, block: str, kind: str, excused: bool) -> Content:
        own = self.ranks[rank]
        if block not in own.memory:
            if self.program.initial is None and block not in own.known:
                self._bring(rank, block)
            else:
                self.failed |= set() if excused else {kind}
                self._write(rank, block, own_data(self.program, block))
        return own.memory[block]

    def _fetch(self, rank: int, block: str) -> None:
        own = self.ranks[rank]
        if block not in own.host:
            if self.program.initial is not None or block in own.known:
                self.failed |= {"placement"}
            own.host[block] = own_data(self.program, block)
        self._write(rank, block, own.host.pop(block))

    def _compute(self, rank: int, node: Compute) -> None:
        own = self.ranks[rank]
        self._touch(rank, (*node.reads, node.accumulates), (node.accumulates,))
        kind = self._kind(own, node)
        excused = [self._races(rank, block, False) for block in node.reads]
        pairs = zip(node.reads, excused, strict=True)
        read = [self._read(rank, block, kind, free) for block, free in pairs]
        total = Counter(dict(own.memory.get(node.accumulates, ())))
        if node.phase is None or node.sub_operator is None:
            for content in read:
                total.update(dict(content))
        else:
            wanted = [own_data(self.program, block) for block in operands(node)]
            matches = zip(excused, read, wanted, strict=False)
            right = all(free or got == want for free, got, want in matches)
            self.failed |= set() if right and len(read) == len(wanted) else {kind}
            total[(node.phase, tuple(sorted(node.sub_operator.items())))] += 1
        self._write(rank, node.accumulates, frozenset(total.items()))

    @staticmethod
    def _kind(own: RankState, node: Compute) -> str:
        """What a wrong operand breaks: alignment in the first step of a later phase."""
        if node.phase is None:
            return "placement"
        if node.phase != own.phase:
            own.aligning, own.phase = own.phase is not None, node.phase
        return "alignment" if own.aligning else "placement"

    # Collectives

    def _call(self, rank: int, node: Instruction) -> None:
        assert isinstance(node, Collective)
        reads, writes = gives(node, rank), gets(node, rank)
        self._touch(rank, reads, writes)
        given = [
            self._read(rank, block, "placement", self._races(rank, block, False)) for block in reads
        ]
        calls = self.calls.setdefault(members(node), {}).setdefault(rank, [])
        if node.request is not None:
            self._fly(rank, node.request, Flight(reads, writes, len(calls), node=node))
        calls.append((node, given))

    def _met(self, key: Key, number: int) -> dict[int, list[Content]] | None:
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
