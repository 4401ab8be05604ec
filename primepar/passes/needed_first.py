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

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from primepar.passes.block_uses import LOCAL, Rank, request_of
from primepar.passes.liveness import LiveBlocks, Size, live_sizes
from primepar.passes.transfer_spans import TransferSpans
from primepar.schedule.program import (
    Collective,
    Compute,
    Instruction,
    IRecv,
    ISend,
    Program,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks

Key = tuple[object, ...]


def needed_first(program: Program) -> Program:
    """Return the program with transfers in the order in which their results are needed."""
    size = live_sizes(program)
    by_rank = zip(program.programs, initial_blocks(program), strict=True)
    ranks = [_Posts(size, number, *given) for number, given in enumerate(by_rank)]
    for transfer in _transfers(ranks):
        transfer.move_up()
    programs = tuple(posts.moved() for posts in ranks)
    return program if programs == program.programs else replace(program, programs=programs)


class _Transfer:
    """A collective, or messages between some ranks: the places of its posts in their lists."""

    def __init__(self) -> None:
        self.places: dict[_Posts, list[int]] = {}
        self.turns: dict[_Posts, int] = {}
        self.is_collective = self.is_posted = self.stays = False

    def add(self, posts: _Posts, places: list[int]) -> None:
        """Add the next posts of a rank; those of several turns of a rank cannot move together."""
        node = posts.nodes[places[0]]
        self.is_collective = isinstance(node, Collective)
        self.stays = self.stays or posts in self.places or request_of(node) is None
        self.places[posts], self.turns[posts] = places, len(posts.turns)
        posts.turns.append(self)

    def move_up(self) -> None:
        """Move up on all ranks, past the collectives that are needed later, if that hides it."""
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

    def __init__(
        self, size: Size, number: int, nodes: Sequence[Instruction], initial: Iterable[str]
    ) -> None:
        rank, self.number = Rank(number), number
        self.nodes, self.spans = nodes, TransferSpans(nodes, rank, initial)
        live = LiveBlocks(size, rank, initial)
        self.grown, self.totals = list[int](), list[int]()
        for node in nodes:
            self.grown.append(live.do(node))
            self.totals.append(live.total)
        self.peak = max(self.totals, default=0)
        self.turns: list[_Transfer] = []
        self.targets: dict[int, int] = {}
        """Place of a post that moves -> the place before which it moves."""

    def runs(self) -> Iterator[list[int]]:
        """Yield the places of each turn: a collective, or messages with nothing between them."""
        messages = list[int]()
        for place, node in enumerate(self.nodes):
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
            and self.spans.ready(places) < collective
            and self.spans.needed(places) < self.spans.needed([collective])
        )

    def gains(self, places: list[int], target: int) -> bool:
        """Return whether a compute before the target can hide posts there, and the peak stays."""
        computes = (
            isinstance(node, Compute) and node.phase is not None
            for node in self.nodes[self.spans.ready(places) + 1 : target]
        )
        grown = sum(self.grown[place] for place in places)
        return any(computes) and max(self.totals[target : places[0]]) + grown <= self.peak

    def move(self, places: list[int], target: int) -> None:
        """Move posts to before an earlier place."""
        grown = sum(self.grown[place] for place in places)
        self.targets.update(dict.fromkeys(places, target))
        for place in range(target, places[0]):
            self.totals[place] += grown

    def moved(self) -> tuple[Instruction, ...]:
        """Return the rank's list after the moves."""
        before: dict[int, list[Instruction]] = {}
        for place, target in self.targets.items():
            before.setdefault(target, []).append(self.nodes[place])
        nodes = list[Instruction]()
        for place, node in enumerate(self.nodes):
            nodes += before.get(place, ())
            nodes += [] if place in self.targets else [node]
        return tuple(nodes)


def _transfers(ranks: Sequence[_Posts]) -> list[_Transfer]:
    """Return the transfers of all ranks; messages that share a turn are of one transfer."""
    counts, same, keys = Counter[Key](), dict[Key, Key](), list[tuple[_Posts, list[int], Key]]()
    for posts in ranks:
        for places in posts.runs():
            turn: Key = ("turn", posts.number, places[0])
            for end in (_end(posts.nodes[place], posts.number) for place in places):
                counts[posts.number, *end] += 1
                call = (*end, counts[posts.number, *end])
                if (first := _first(same, call)) != turn:
                    same[first] = turn
            keys.append((posts, places, turn))
    transfers: dict[Key, _Transfer] = {}
    for posts, places, turn in keys:
        transfers.setdefault(_first(same, turn), _Transfer()).add(posts, places)
    return list(transfers.values())


def _end(node: Instruction, rank: int) -> Key:
    """Return what all ranks of a message or collective have in common."""
    match node:
        case ISend() | IRecv():
            pair = (rank, node.peer) if isinstance(node, ISend) else (node.peer, rank)
            return "message", node.communicator, *pair
        case _ if isinstance(node, Collective):
            return "collective", node.communicator, node.group
        case _:
            return "blocking", rank


def _first(same: dict[Key, Key], key: Key) -> Key:
    """Follow the keys of the same transfer to the last one."""
    while key in same:
        key = same[key]
    return key
