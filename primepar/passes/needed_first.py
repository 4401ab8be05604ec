"""Posts a transfer before the collectives of its ranks whose results are needed later than its own.

A transfer is a collective, or all messages that some ranks post to one another with
nothing between them. It moves up past collectives of its ranks if its blocks are there
already and its result is used before theirs. It moves on all its ranks past the same collectives,
so that these agree on the order. It moves only if it gets behind a compute that does not need it,
and if no rank's peak rises. `overlap` then posts it before that compute.

The usual case is backward of a column-parallel operator whose rows are cut outside (`Ks`). Its
input I is gathered again, for dW. That is hidden behind the product dI, and the reduction of dI
behind the product dW, as in Megatron-LM (Korthikanti et al. 2022, arXiv 2205.05198):

    compute         dI += dO * W             all_gather      I, posted
    reduce_scatter  dI                       compute         dI += dO * W
    all_gather      I, posted          ->    reduce_scatter  dI, posted
    wait            I                        wait            I
    compute         dW += I * dO             compute         dW += I * dO
                                             wait            dI

Why it is correct: between the new place and the old one no instruction uses a block of the
transfer. Messages keep their order, and so do collectives of different ranks; two collectives of
the same ranks change places on all of them. And no deadlock arises: a post does not block, and an
earlier one removes dependencies between ranks. Blocking collectives do not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.passes.block_uses import LOCAL, RankList, Size, rank_lists, request_of, with_lists
from primepar.passes.calls import meetings
from primepar.passes.liveness import live_sizes
from primepar.schedule.program import (
    Collective,
    Compute,
    Instruction,
    IRecv,
    ISend,
    Program,
    Wait,
)


def needed_first(program: Program) -> Program:
    """Return the program with transfers in the order in which their results are needed."""
    size = live_sizes(program)
    ranks = [_Posts(size, line) for line in rank_lists(program)]
    for transfer in _transfers(ranks):
        transfer.move_up()
    return with_lists(program, (posts.moved() for posts in ranks))


class _Transfer:
    """A collective, or messages between some ranks: the places of its posts in their lists."""

    def __init__(self) -> None:
        self.places: dict[_Posts, list[int]] = {}
        self.turns: dict[_Posts, int] = {}
        self.is_collective = self.stays = False

    def add(self, posts: _Posts, places: list[int]) -> None:
        """Add the next posts of a rank; those of several turns of a rank cannot move together."""
        node = posts.line.nodes[places[0]]
        self.is_collective = isinstance(node, Collective)
        # Two turns of one rank in a transfer have something between them that may not be passed; a
        # blocking call holds up all that comes after it.
        self.stays = self.stays or posts in self.places or request_of(node) is None
        self.places[posts], self.turns[posts] = places, len(posts.turns)
        posts.turns.append(self)

    def move_up(self) -> None:
        """Move up on all ranks, past the collectives that are needed later, if that hides it."""
        # The earliest collective of a run of them that all may wait: passing one alone may gain
        # nothing, where passing two gets behind a compute.
        target, turns = self, 1
        while not self.stays and (before := self._before(turns)) is not None:
            target, turns = before, turns + 1
        pairs = [(posts, target.places[posts][0]) for posts in self.places]
        if target is not self and all(
            posts.gains(self.places[posts], place) for posts, place in pairs
        ):
            for posts, place in pairs:
                posts.move(self.places[posts], place)

    def _before(self, turns: int) -> _Transfer | None:
        """Return the collective some turns before, if it is the same on all ranks and may wait."""
        # A set of one: on all ranks of the transfer the same collective must be this many turns
        # before, else they would disagree on the order.
        before = {
            posts.turns[turn - turns] if turn >= turns else None
            for posts, turn in self.turns.items()
        }
        collective = before.pop()
        if before or collective is None or not collective.is_collective:
            return None
        may_wait = all(
            posts.may_pass(places, collective.places[posts][0])
            for posts, places in self.places.items()
        )
        return collective if may_wait else None


class _Posts:
    """The posts of one rank: in which turns they come, and how they move."""

    def __init__(self, size: Size, line: RankList) -> None:
        self.number, self.line = line.rank.rank, line
        self.grown, self.totals = line.growth(size)[1:], line.live(size)[1:]
        self.peak = max(self.totals, default=0)
        self.turns: list[_Transfer] = []
        self.targets: dict[int, int] = {}
        """Place of a post that moves -> the place before which it moves."""

    def runs(self) -> Iterator[list[int]]:
        """Yield the places of each turn: a collective, or messages with nothing between them."""
        messages = list[int]()
        for place, node in enumerate(self.line.nodes):
            if isinstance(node, ISend | IRecv):
                messages.append(place)
                continue
            yield from [messages] if messages else []
            messages = []
            yield from [] if type(node) in LOCAL or isinstance(node, Wait) else [[place]]
        yield from [messages] if messages else []

    def may_pass(self, places: list[int], collective: int) -> bool:
        """Return whether posts may move up past an earlier collective and all in between."""
        return (
            collective not in self.targets
            and self.line.ready(places) < collective
            and self.line.needed(places) < self.line.needed([collective])
        )

    def gains(self, places: list[int], target: int) -> bool:
        """Return whether a compute before the target can hide posts there, and the peak stays."""
        computes = (
            isinstance(node, Compute) and node.phase is not None
            for node in self.line.nodes[self.line.ready(places) + 1 : target]
        )
        # From the new place to the old one the received blocks are live in addition.
        grown = sum(self.grown[place] for place in places)
        return any(computes) and max(self.totals[target : places[0]]) + grown <= self.peak

    def move(self, places: list[int], target: int) -> None:
        """Move posts to before an earlier place; what they receive is live from there on."""
        self.targets.update(dict.fromkeys(places, target))
        for place in range(target, places[0]):
            self.totals[place] += sum(self.grown[post] for post in places)

    def moved(self) -> tuple[Instruction, ...]:
        """Return the rank's list after the moves."""

        # Of what moves before a place, and the instruction that is there, what moves comes first;
        # several that move there keep their order, as sorting is stable.
        def turn(place: int) -> tuple[int, bool]:
            return self.targets.get(place, place), place not in self.targets

        return tuple(self.line.nodes[place] for place in sorted(range(len(self.totals)), key=turn))


def _transfers(ranks: Sequence[_Posts]) -> list[_Transfer]:
    """Return the transfers of all ranks: turns that share a message or a call are one.

    Example: rank 0 posts `isend a -> 1; isend b -> 2` with nothing between them. So the receive of
    `a` on rank 1 and that of `b` on rank 2 are of one transfer with them.
    """
    first: dict[object, object] = {}

    def find(key: object) -> object:
        """Follow the keys of one transfer to the last one."""
        while key in first:
            key = first[key]
        return key

    turns: list[tuple[_Posts, list[int]]] = []
    for posts in ranks:
        met = list(meetings(posts.line.nodes, posts.number))
        for places in posts.runs():
            turn: object = (posts.number, places[0])
            for meeting in (meeting for place in places for meeting in met[place]):
                if (other := find(meeting)) != find(turn):
                    first[other] = find(turn)
            turns.append((posts, places))
    transfers: dict[object, _Transfer] = {}
    for posts, places in turns:
        key = find((posts.number, places[0]))
        transfers.setdefault(key, _Transfer()).add(posts, places)
    return list(transfers.values())
