"""How far the ranks of a program come, so that a picture of a deadlock shows where nothing goes on.

Messages are rendezvous and match in order for each source, destination and communicator. So do the
calls of a collective by its group's members. What a verdict is about is decided elsewhere; here
only the place is found, one instruction after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

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
    messages_of,
)
from primepar.schedule.program_file import instruction_line


class Standstill(Struct, frozen=True):
    """Where one rank is when nothing goes on any more, in words."""

    text: str
    """The instruction that does not return, or that the rank is at its end."""
    awaits: tuple[int, ...] = ()
    """Ranks that would have to go on first."""
    left: int = 0
    """Instructions that are never reached."""

    @property
    def lines(self) -> list[str]:
        """Where it hangs, whom it waits for, and how much it never reaches."""
        if self.text == _ENDED:
            return [self.text]
        ranks = ", ".join(map(str, self.awaits))
        devices = f"device{'s' * (len(self.awaits) > 1)} {ranks}"
        lines = [f"hangs in {self.text}", f"waits for {devices if ranks else 'nobody'}"]
        return lines + [f"never reaches {self.left} more"] * (self.left > 0)


_ENDED = "at its end"


class Hang(NamedTuple):
    """Where a rank does not go on."""

    instruction: int
    """Index of the instruction that does not return."""
    awaits: tuple[int, ...]
    """Ranks that would have to go on first; none where no rank can help."""


class _Half(NamedTuple):
    """One rank's part in a message or a collective."""

    channel: tuple[object, ...]
    side: int
    """0 sends, 1 receives; a member of a collective is its own side."""
    turn: int
    """How many of this side came before on the channel."""
    others: tuple[int, ...]
    """Sides that must come as far."""
    ranks: tuple[int, ...]
    """The rank of each of them."""


_NEVER = _Half(("never",), 0, 0, (1,), (-1,))
"""What a wait for a request that nobody made waits for."""


class _Walk:
    """The ranks on their way, and what they have posted so far."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.at = [0] * program.ranks
        self.posted: Counter[tuple[object, ...]] = Counter()
        self.claims: dict[tuple[object, ...], tuple[object, ...]] = {}
        """What each part and the others must agree on: a tag, or which collective it is."""
        self.waits: list[list[_Half]] = [[] for _ in range(program.ranks)]
        """What the instruction of a rank waits for, once it has started."""
        self.started = [False] * program.ranks
        self.requests: list[dict[str, list[_Half]]] = [{} for _ in range(program.ranks)]

    def go(self, rank: int) -> bool:
        """Take a rank as far as it comes; whether it has started or finished anything."""
        nodes, moved = self.program.programs[rank], False
        while self.at[rank] < len(nodes):
            if not self.started[rank]:
                self.waits[rank] = self._start(rank, nodes[self.at[rank]])
                self.started[rank] = moved = True
            if self._missing(rank):
                break
            self.at[rank] += 1
            self.started[rank], moved = False, True
        return moved

    def _start(self, rank: int, node: Instruction) -> list[_Half]:
        match node:
            case Wait(request=request):
                return self.requests[rank].pop(request, [_NEVER])
            case Send() | Recv() | ISend() | IRecv() | Group():
                halves = [self._message(rank, message) for message in messages_of(node)]
                if isinstance(node, ISend | IRecv | Group) and node.request is not None:
                    self.requests[rank][node.request] = halves
                    return []
                return halves
            case _ if isinstance(node, Collective):
                half = self._call(rank, node)
                if node.request is None:
                    return [half]
                self.requests[rank][node.request] = [half]
        return []

    def _message(self, rank: int, node: Message) -> _Half:
        leaves = isinstance(node, Send | ISend)
        ends = (rank, node.peer) if leaves else (node.peer, rank)
        side, other = (0, 1) if leaves else (1, 0)
        channel = ("message", node.communicator, *ends)
        return self._post(channel, side, (node.tag,), (other,), (node.peer,))

    def _call(self, rank: int, node: Collective) -> _Half:
        others = tuple(member for member in node.group if member != rank)
        channel = ("collective", node.communicator, node.group)
        claim = (
            type(node),
            *(getattr(node, field, None) for field in ("root", "reduction", "scale")),
        )
        return self._post(channel, rank, claim, others, others)

    def _post(
        self, channel: tuple[object, ...], side: int, claim: tuple[object, ...],
        others: tuple[int, ...], ranks: tuple[int, ...],
    ) -> _Half:  # fmt: skip
        turn = self.posted[*channel, side]
        self.posted[*channel, side] += 1
        self.claims[*channel, side, turn] = claim
        return _Half(channel, side, turn, others, ranks)

    def _missing(self, rank: int) -> tuple[int, ...]:
        """Ranks that have not come as far as this one needs."""
        return tuple(dict.fromkeys(
            other
            for half in self.waits[rank]
            for side, other in zip(half.others, half.ranks, strict=True)
            if not self._meets(half, side)
        ))  # fmt: skip

    def _meets(self, half: _Half, side: int) -> bool:
        """Whether another side has come as far, with the same claim."""
        claim = self.claims.get((*half.channel, side, half.turn))
        return claim is not None and claim == self.claims[*half.channel, half.side, half.turn]

    def hang(self, rank: int) -> Hang | None:
        """Where a rank hangs; None if it has come to its end."""
        if self.at[rank] == len(self.program.programs[rank]):
            return None
        return Hang(self.at[rank], tuple(peer for peer in self._missing(rank) if peer >= 0))


def hangs(program: Program) -> dict[int, Hang]:
    """Rank -> where it hangs, of the ranks that do not come to their end."""
    walk = _Walk(program)
    ranks = range(program.ranks)
    while sum(walk.go(rank) for rank in ranks):
        pass
    hang_by_rank = {rank: walk.hang(rank) for rank in ranks}
    return {rank: hang for rank, hang in hang_by_rank.items() if hang is not None}


def standstills(program: Program, stops: Mapping[int, Hang]) -> list[Standstill]:
    """Where every rank is in the end, by rank."""
    return [
        _standstill(nodes, stops[rank]) if rank in stops else Standstill(_ENDED)
        for rank, nodes in enumerate(program.programs)
    ]


def _standstill(nodes: Sequence[Instruction], stop: Hang) -> Standstill:
    text = " ".join(instruction_line(nodes[stop.instruction]).split())
    return Standstill(text, stop.awaits, len(nodes) - stop.instruction - 1)
