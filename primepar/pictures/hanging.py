"""How far the ranks of a program come, so that a picture of a deadlock shows where nothing goes on.

Messages are rendezvous and match in order for each source, destination and communicator. So do the
calls of a collective by its group's members. What a verdict is about is decided elsewhere; here
only the place is found, one instruction after the other.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Hang(NamedTuple):
    """Where a rank does not go on."""

    instruction: int
    """Index of the instruction that does not return."""
    awaits: tuple[int, ...]
    """Ranks that would have to go on first; none where no rank can help."""


class _Part(NamedTuple):
    """One rank's part in a message or a collective, and the parts that it needs."""

    channel: tuple[object, ...]
    turn: int
    """How many parts of this rank came before on its side of the channel."""
    claim: object
    """What all parts have to agree on: a tag, or which collective it is."""
    others: dict[object, int]
    """The other sides of the channel -> their ranks."""


def hangs(program: Program) -> dict[int, Hang]:
    """Rank -> where it hangs, of the ranks that do not come to their end."""
    run = _Run(program)
    while sum(run.advance(rank) for rank in range(program.ranks)):
        pass
    return {
        rank: Hang(index, tuple(dict.fromkeys(run.missing(rank))))
        for rank, index in enumerate(run.index)
        if index < len(program.programs[rank])
    }


class _Run:
    """The ranks on their way, and what they have posted so far."""

    def __init__(self, program: Program) -> None:
        self.programs = program.programs
        self.index = [0] * program.ranks
        self.posted: dict[tuple[object, ...], list[object]] = {}
        """Channel and side -> the claims of what was posted there, in order."""
        self.waits: list[list[_Part] | None] = [None] * program.ranks
        """What the instruction of a rank waits for; None before it has started."""
        self.requests: list[dict[str, list[_Part]]] = [{} for _ in range(program.ranks)]

    def advance(self, rank: int) -> bool:
        """Take a rank as far as it comes; whether it has started or finished anything."""
        nodes, moved = self.programs[rank], False
        while self.index[rank] < len(nodes):
            if self.waits[rank] is None:
                self.waits[rank], moved = self._start(rank, nodes[self.index[rank]]), True
            if self.missing(rank) or _NEVER in (self.waits[rank] or ()):
                break
            self.index[rank] += 1
            self.waits[rank], moved = None, True
        return moved

    def _start(self, rank: int, node: Instruction) -> list[_Part]:
        """Post the parts of an instruction; return what it waits for before it returns."""
        match node:
            case Wait():
                return self.requests[rank].pop(node.request, [_NEVER])
            case Send() | Recv() | ISend() | IRecv() | Group():
                parts = [self._message(rank, message) for message in messages_of(node)]
            case _ if isinstance(node, Collective):
                fields = (getattr(node, name, None) for name in ("root", "reduction", "scale"))
                others: dict[object, int] = {peer: peer for peer in node.group if peer != rank}
                channel = ("collective", node.communicator, node.group)
                parts = [self._post(channel, rank, (type(node), *fields), others)]
            case _:
                return []
        request = getattr(node, "request", None)
        if request is None:
            return parts
        self.requests[rank][request] = parts
        return []

    def _message(self, rank: int, node: Message) -> _Part:
        sends = isinstance(node, Send | ISend)
        ends = (rank, node.peer) if sends else (node.peer, rank)
        channel = ("message", node.communicator, *ends)
        return self._post(channel, sends, node.tag, {not sends: node.peer})

    def _post(
        self, channel: tuple[object, ...], side: object, claim: object, others: dict[object, int]
    ) -> _Part:
        claims = self.posted.setdefault((*channel, side), [])
        claims.append(claim)
        return _Part(channel, len(claims) - 1, claim, others)

    def missing(self, rank: int) -> list[int]:
        """Ranks that have not come as far as this one needs, or claim something else there."""
        return [
            other
            for part in self.waits[rank] or ()
            for side, other in part.others.items()
            if self.posted.get((*part.channel, side), [])[part.turn : part.turn + 1] != [part.claim]
        ]


_NEVER = _Part(("never",), 0, None, {})
"""What a wait for a request that nobody made waits for."""
