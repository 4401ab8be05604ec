"""Which sends meet which receives, and which calls of a collective meet each other.

Messages match in order per (source, destination, communicator), collectives in order per
(communicator, set of ranks). There are no wildcards, so what matches depends on no order of events:
the second send from rank 0 to rank 1 meets the second receive of rank 1 from rank 0, however the
ranks run. A tag selects nothing. It is a claim, like the root or the reduction of a collective: two
sides that meet and state different things are a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from primepar.schedule.deadline import in_time
from primepar.schedule.effects import Effects, Post, effects
from primepar.schedule.evidence import (
    Disagreement,
    Leaked,
    NotPosted,
    Outsider,
    Place,
    Side,
    Unmatched,
)
from primepar.schedule.meaning import meaning_of
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Collective,
    Gather,
    Instruction,
    ISend,
    Message,
    Program,
    ReduceScatter,
    Scatter,
    Send,
)

# What the sides of a message or collective must state alike: types of data, and counts.
#
# A side need not state them: it then agrees with every other. Example: of three members of an all-
# gather the first states `count` 4, the second states none, and the third, which states `count` 5,
# differs from the first. What is sent and where it goes must be of one size too, where the program
# defines the sizes of both blocks: `isend y[0]` of 2 elements does not meet `irecv z[0]` of 3.

Elements = Callable[[str], int | None]
"""From a block to its number of elements; None if it is not defined."""


class Dispute(NamedTuple):
    """A claim that two sides, given by their positions, state differently."""

    claim: str
    first: int
    second: int
    want: int | str
    got: int | str


def dispute(
    sides: Sequence[tuple[int, Message | Collective]], elements: Elements
) -> Dispute | None:
    """Return the first claim on which two sides, each with its rank, differ; None if all agree."""
    stated: dict[str, tuple[int, int | str]] = {}
    for position, (_, node) in enumerate(sides):
        for claim, value in (("dtype", node.dtype), ("count", node.count)):
            if value is None:
                continue
            first, want = stated.setdefault(claim, (position, value))
            if want != value:
                return Dispute(claim, first, position, want, value)
    blocks: dict[Hashable, tuple[int, str]] = {}
    # The members mostly have one list of n blocks, which is then read once and not n times.
    is_one_list = len({getattr(node, "blocks", ()) for _, node in sides}) == 1
    for position, (rank, node) in enumerate(sides):
        for data, block in _blocks(node, rank, with_list=position == 0 or not is_one_list):
            first, other = blocks.setdefault(data, (position, block))
            if other != block:
                sizes = elements(other), elements(block)
                if None not in sizes and sizes[0] != sizes[1]:
                    return Dispute("elements", first, position, sizes[0] or 0, sizes[1] or 0)
    return None


def _blocks(
    node: Message | Collective, rank: int, with_list: bool
) -> Iterator[tuple[Hashable, str]]:
    """Yield which data one side sends or receives, and its block: equal data has one size.

    Of an all-gather the data of member 1 is its own block, and the second one of each list.
    """
    if isinstance(node, AllReduce):
        yield from enumerate(node.reduced)
    elif isinstance(node, AllToAll):
        yield from (
            ((rank, other), block) for other, block in zip(node.group, node.blocks, strict=False)
        )
        yield from (
            ((other, rank), block) for other, block in zip(node.group, node.into, strict=False)
        )
    elif isinstance(node, AllGather | ReduceScatter | Gather | Scatter):
        if with_list:
            yield from zip(node.group, node.blocks, strict=False)  # all of them at the root
        yield rank, node.block
    elif not isinstance(node, Barrier):
        yield "all", node.block


Channel = tuple[int, int, str]
"""Source, destination and communicator."""
Fault = Unmatched | Outsider | NotPosted | Disagreement
Members = tuple[str, tuple[int, ...]]
"""Communicator and members of a collective, in ascending order."""
Queue = Channel | Members
"""Where a side takes its turn."""


def queue_of(post: Post, rank: int) -> Queue | None:
    """Return where one side takes its turn: the n-th there meets the n-th of the other ranks.

    None for a rank that calls a collective of others. Example: of `isend a -> 1; isend b -> 1` on
    rank 0 the second is the second of channel (0, 1, "world").
    """
    if isinstance(post, Collective):
        members = tuple(sorted(post.group))
        return (post.communicator, members) if rank in members else None
    if isinstance(post, Send | ISend):
        return rank, post.peer, post.communicator
    return post.peer, rank, post.communicator


class Matches:
    """The matched sides of a program, and what can never be matched.

    `partners` has every matched side: of a message (send, receive), of a collective the calls of
    all members in ascending order of the ranks. `posted` maps each wait to the instruction that it
    finishes.
    """

    def __init__(self, program: Program) -> None:
        self.program, self._elements = program, meaning_of(program).elements
        self.effects: list[list[Effects]] = [
            [effects(node, rank) for node in nodes]
            for rank, nodes in enumerate(in_time(program.programs))
        ]
        """Rank -> the effects of its instructions."""
        self.partners: dict[Side, tuple[Side, ...]] = {}
        self.channels: dict[Channel, list[tuple[Side, Side]]] = {}
        """The matched messages of each channel, in order."""
        self.posted: dict[Place, Place] = {}
        self.leaked: list[Leaked] = []
        """Requests that nothing waits for."""
        self.faults: list[Fault] = []
        """In the order of their instructions, those of the lowest rank first."""
        self._sends: dict[Channel, list[Side]] = {}
        self._receives: dict[Channel, list[Side]] = {}
        self._calls: dict[Members, dict[int, list[Side]]] = {}
        for rank in in_time(range(program.ranks)):
            self._read(rank)
        for channel in in_time({**self._sends, **self._receives}):
            self._match_messages(channel)
        for (_, members), by_rank in in_time(self._calls.items()):
            for calls in zip_longest(*(by_rank.get(rank, ()) for rank in members)):
                self._match_calls(members, calls)
        self.faults.sort(key=lambda fault: _place_of(fault)[::-1])

    def _read(self, rank: int) -> None:
        """Queue what a rank posts, and find the instruction that each of its waits finishes."""
        pending: dict[str, int] = {}
        for index, of in enumerate(self.effects[rank]):
            for part, post in enumerate(of.posts):
                self._queue(post, (rank, index, part))
            if of.request is not None:
                if of.request in pending:
                    # The name is posted again before it was awaited: the next wait is for the new
                    # one, and nobody waits for the first.
                    self.leaked.append(Leaked((rank, pending[of.request]), of.request))
                pending[of.request] = index
            if of.awaits is not None:
                post_index = pending.pop(of.awaits, None)
                if post_index is None:
                    self.faults.append(NotPosted((rank, index), of.awaits))
                else:
                    self.posted[rank, index] = (rank, post_index)
        self.leaked += [Leaked((rank, index), request) for request, index in pending.items()]

    def _queue(self, post: Post, side: Side) -> None:
        queue = queue_of(post, side[0])
        if queue is None:
            self.faults.append(Outsider(side))
        elif len(queue) == 2:
            self._calls.setdefault(queue, {}).setdefault(side[0], []).append(side)
        else:
            ends = self._sends if isinstance(post, Send | ISend) else self._receives
            ends.setdefault(queue, []).append(side)

    def _match_messages(self, channel: Channel) -> None:
        source, destination, _ = channel
        sends, receives = self._sends.get(channel, ()), self._receives.get(channel, ())
        matched = self.channels.setdefault(channel, [])
        # Channels have no wildcards, so the n-th send meets the n-th receive in every run. Where
        # one side has more, the rest of it never meets anything.
        for send, receive in zip_longest(sends, receives):
            if send is None or receive is None:
                side, peer = (send, destination) if send is not None else (receive, source)
                assert side is not None
                self.faults.append(Unmatched(side, peer))
                continue
            sent, received = self.post(send), self.post(receive)
            assert isinstance(sent, Message)
            assert isinstance(received, Message)
            # Two sides that meet and disagree meet no others, as messages match in order; and those
            # behind them in the channel never come to meet.
            if sent.tag != received.tag:
                self.faults.append(Disagreement(receive, send, "tag", received.tag, sent.tag))
                return
            states = (sent.count, received.count, sent.dtype, received.dtype)
            is_plain = sent.block == received.block and not any(states)
            differs = None if is_plain else self._disputed((send, receive))
            if differs is not None:
                self.faults.append(differs)
                return
            matched.append((send, receive))
            self.partners[send] = self.partners[receive] = (send, receive)

    def _match_calls(self, members: tuple[int, ...], calls: Sequence[Side | None]) -> None:
        present = tuple([call for call in calls if call is not None])
        # One member makes a call less, so this call of the others waits for it without end.
        if len(present) < len(members):
            absent = next(r for r, call in zip(members, calls, strict=True) if call is None)
            self.faults.append(Unmatched(present[0], absent, is_call=True))
            return
        for call in present:
            differs = self._differing(present[0], call)
            if differs is not None:
                self.faults.append(differs)
                return
        disputed = self._disputed(present)
        if disputed is not None:
            self.faults.append(disputed)
            return
        self.partners.update(dict.fromkeys(present, present))

    def _differing(self, first: Side, call: Side) -> Disagreement | None:
        """How a call of a collective differs from that of the lowest rank; None if they agree."""
        one, other = self.post(first), self.post(call)
        for claim, expected, got in _claims(one, other):
            if expected != got:
                return Disagreement(call, first, claim, expected, got)
        return None

    def _disputed(self, sides: Sequence[Side]) -> Disagreement | None:
        """The side that states another count or dtype than an earlier one, or has another size."""
        wrong = dispute([(side[0], self.post(side)) for side in sides], self._elements)
        if wrong is None:
            return None
        first, second = sides[wrong.first], sides[wrong.second]
        return Disagreement(second, first, wrong.claim, wrong.want, wrong.got)

    def node(self, place: Place | Side) -> Instruction:
        """The instruction at a place."""
        return self.program.programs[place[0]][place[1]]

    def post(self, side: Side) -> Post:
        """The message, or the call of a collective, that is one side."""
        return self.effects[side[0]][side[1]].posts[side[2]]

    def sides(self, place: Place) -> tuple[Side, ...]:
        """The sides that an instruction posts."""
        rank, index = place
        posts = self.effects[rank][index].posts
        return (
            ((rank, index, 0),)
            if len(posts) == 1
            else tuple([(rank, index, part) for part in range(len(posts))])
        )

    def awaited(self, place: Place) -> tuple[Side, ...]:
        """The sides that an instruction posts and finishes, or those that a wait finishes."""
        of = self.effects[place[0]][place[1]]
        if of.awaits is not None:
            return self.sides(self.posted[place]) if place in self.posted else ()
        return self.sides(place) if of.request is None else ()

    def wait_of(self, post: Place) -> Place | None:
        """The wait that finishes what an instruction posts; None if there is none."""
        return next((wait for wait, posted in self.posted.items() if posted == post), None)


def _place_of(fault: Fault) -> Place:
    return fault.place if isinstance(fault, NotPosted) else fault.side[:2]


def _claims(one: Post, other: Post) -> Iterator[tuple[str, object, object]]:
    """Yield (claim, as the first member states it, as another one does) of a collective.

    A type differs as `collective`; only calls of one type are compared further. `lengths` is the
    number of blocks where each member of the group needs one.
    """
    assert isinstance(one, Collective)
    assert isinstance(other, Collective)
    yield "collective", type(one), type(other)
    for name in ("group", "root", "reduction", "scale"):
        yield name, getattr(one, name, None), getattr(other, name, None)
    if isinstance(one, AllReduce) and isinstance(other, AllReduce):
        yield "blocks", len(one.reduced), len(other.reduced)
    if isinstance(other, AllGather | ReduceScatter | AllToAll):
        yield "lengths", len(other.group), len(other.blocks)
    if isinstance(other, AllToAll):
        yield "lengths", len(other.group), len(other.into)
