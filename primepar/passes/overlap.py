"""Messages posted as early and waited for as late as their data allow, across operators.

A wait moves down to what touches its blocks next, past computes, cuts, joins, frees and whatever
else does not. A free of what is sent moves down with the wait. A collective that blocks becomes a
posted one with a wait where a compute can be done meanwhile: the gradients' all-reduces hide behind
the rest of backward. Then posts move up to what touches their blocks before. The order of posts,
and of all that blocks, stays on every rank, so the same ends meet.

Why it is right: nothing that touches a block in flight is passed, so every instruction finds what
it found before. Whatever waits for something waited for no less before: a post that comes earlier,
or a wait that comes later, takes away what others wait for and adds nothing, so no circle arises.

    compute     g += x * dy                compute     g += x * dy
    all_reduce  g over 0,1                 all_reduce  g over 0,1, posted
    compute     dx += dy * w      ->       compute     dx += dy * w
    compute     new += old * g             wait        all_reduce g
                                           compute     new += old * g

Memory: a block that arrives is alive from its post, one that leaves until its free. Nothing moves
so far that more is alive on its rank than there was at most before; blocks whose size nothing tells
do not become alive earlier, or stay alive longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import LOCAL, NOTHING, Rank, UsedBlocks, followed, request_of
from primepar.passes.liveness import LiveBlocks, Size, sizes_of
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks

_BLOCKING = AllGather | AllReduce | Broadcast | Reduce | ReduceScatter
"""Collectives that become posted ones."""


def overlap(program: Program) -> Program:
    """Every post as early, and every wait as late, as data and memory allow."""
    size, lists = sizes_of(program), []
    each = zip(program.programs, initial_blocks(program), strict=True)
    for number, (nodes, initial) in enumerate(each):
        rank = Rank(number)
        peak = LiveBlocks(size, rank, initial).peak(nodes)
        late = _Late(LiveBlocks(size, rank, initial), size, rank, peak).list(nodes)
        early = _early(late, LiveBlocks(size, rank, initial), size, rank, peak)
        # Waits pass the posts that now come before them.
        lists.append(tuple(_Late(LiveBlocks(size, rank, initial), size, rank, peak).list(early)))
    programs = tuple(lists)
    return program if programs == program.programs else replace(program, programs=programs)


@dataclass(eq=False)
class _Held:
    """A wait, or a free after it, that is not done yet."""

    node: Instruction
    touches: UsedBlocks
    post: int | None = None
    """Where the collective stands that blocks unless computes follow it."""
    computes: int = 0
    """How many had been done then."""


class _Late:
    """Waits as late as they can be."""

    def __init__(self, alive: LiveBlocks, size: Size, rank: Rank, peak: int) -> None:
        self.alive, self.size, self.rank, self.peak = alive, size, rank, peak
        self.done: list[Instruction] = []
        self.computes = 0
        self.held: dict[_Held, None] = {}
        self.frees: dict[_Held, None] = {}
        """Those of what is held that are frees."""
        self.by_block: dict[str, dict[_Held, None]] = {}
        self.by_request: dict[str, _Held] = {}

    def list(self, nodes: Sequence[Instruction]) -> list[Instruction]:
        """The list of the rank with its waits moved down."""
        requests = {request_of(node) for node in nodes}
        for node, own in followed(nodes, self.rank):
            if not isinstance(node, Wait):
                self._follow(node, own, requests)
            elif own is NOTHING:
                self._do(node)
            else:
                self._hold(_Held(node, own))
        for held in list(self.held):
            self._let_go(held)
        return self.done

    def _follow(self, node: Instruction, own: UsedBlocks, requests: set[str | None]) -> None:
        if isinstance(node, Free) and self._goes_with_waits(node):
            self._hold(_Held(node, own))
            return
        self._make_way(own)
        request = request_of(node)
        if request in self.by_request:
            self._let_go(self.by_request[str(request)])
        self._make_room(node)
        if request is None and isinstance(node, _BLOCKING) and len(node.group) > 1:
            name = f"{node.__struct_config__.tag} {node.block}"
            if name not in requests:
                self._hold(_Held(Wait(name), own, len(self.done), self.computes))
        self._do(node)

    def _goes_with_waits(self, node: Free) -> bool:
        """Whether a block that is freed is still on its way out."""
        holders = self.by_block.get(node.block, {})
        return (
            self.size(node.block) is not None
            and any(isinstance(held.node, Wait) for held in holders)
            and not any(isinstance(held.node, Free) for held in holders)
        )

    def _hold(self, held: _Held) -> None:
        self.held[held] = None
        for name in dict.fromkeys((*held.touches.reads, *held.touches.changes)):
            self.by_block.setdefault(name, {})[held] = None
        if isinstance(held.node, Wait):
            self.by_request[held.node.request] = held
        else:
            self.frees[held] = None

    def _make_way(self, own: UsedBlocks) -> None:
        """Do all that an instruction must find done."""
        if not self.held:
            return
        for name in own.reads:
            for held in list(self.by_block.get(name) or ()):
                if held in self.held and name in held.touches.changes:
                    self._let_go(held)
        for name in own.changes:
            for held in list(self.by_block.get(name) or ()):
                self._let_go(held)

    def _make_room(self, node: Instruction) -> None:
        """Do frees that there must be memory for an instruction."""
        if not self.frees:
            return
        for held in list(self.frees):
            if self.alive.after(node) <= self.peak:
                return
            self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        """Do what was held, after what was held before it for the same blocks."""
        if held not in self.held:
            return
        del self.held[held]
        names = dict.fromkeys((*held.touches.reads, *held.touches.changes))
        for name in names:
            del self.by_block[name][held]
        if isinstance(held.node, Wait):
            self._finish(held, held.node)
            for other in [each for name in names for each in self.by_block[name]]:
                if isinstance(other.node, Free) and len(self.by_block[other.node.block]) == 1:
                    self._let_go(other)
            return
        del self.frees[held]
        for name in names:
            for earlier in list(self.by_block[name]):
                self._let_go(earlier)
        self._do(held.node)

    def _finish(self, held: _Held, wait: Wait) -> None:
        """Do a wait, for a collective that blocks if there are computes since then."""
        del self.by_request[wait.request]
        if held.post is not None:
            if held.computes == self.computes:
                return
            post: Any = self.done[held.post]
            self.done[held.post] = replace(post, request=wait.request)
        self._do(wait)

    def _do(self, node: Instruction) -> None:
        self.alive.do(node)
        self.computes += isinstance(node, Compute)
        self.done.append(node)


def _early(
    nodes: list[Instruction], alive: LiveBlocks, size: Size, rank: Rank, peak: int
) -> list[Instruction]:
    """The list with its posts moved up."""
    most, new = [], []
    for node in nodes:
        before = alive.total
        new.append(alive.do(node))
        most.append(max(before, alive.total))
    held, done = _Posts(), list[Instruction]()
    each = list(zip(followed(nodes, rank), most, new, strict=True))
    for (node, own), before_or_after, grown in reversed(each):
        if isinstance(node, ISend | IRecv | Collective) and request_of(node) is not None:
            known = all(size(name) is not None for name in own.made)
            held.take(node, own, grown if known else peak + 1)
            continue
        blocks = type(node) not in LOCAL and type(node) is not Wait
        done += held.stopped_by(own, request_of(node), blocks, peak - before_or_after)
        done.append(node)
    done += held.stopped_by(NOTHING, None, True, 0)
    return done[::-1]


class _Posts:
    """Posts on their way up, the last one in the list first."""

    def __init__(self) -> None:
        self.posts: list[tuple[Instruction, UsedBlocks, int]] = []
        self.reads, self.changes = dict[str, int](), dict[str, int]()
        self.requests = dict[str, int]()
        self.elements = 0

    def take(self, node: Instruction, own: UsedBlocks, elements: int) -> None:
        """Have another post on its way; `elements` are those that it makes alive."""
        self.posts.append((node, own, elements))
        self._count(node, own, elements, 1)

    def _count(self, node: Instruction, own: UsedBlocks, elements: int, times: int) -> None:
        self.elements += times * elements
        counted = (
            (self.requests, (str(request_of(node)),)),
            (self.reads, own.reads),
            (self.changes, own.changes),
        )
        for counts, names in counted:
            for name in names:
                counts[name] = counts.get(name, 0) + times
                if not counts[name]:
                    del counts[name]

    def stopped_by(
        self, own: UsedBlocks, request: str | None, blocks: bool, room: int
    ) -> list[Instruction]:
        """Posts that do not pass an instruction, the last first.

        They touch its blocks, or there is no `room`, or it `blocks`; or they come after such a one.
        """
        stopped: list[Instruction] = []
        while self.posts and (
            blocks
            or self.elements > room
            or str(request) in self.requests
            or not self.changes.keys().isdisjoint(own.reads)
            or not self.changes.keys().isdisjoint(own.changes)
            or not self.reads.keys().isdisjoint(own.changes)
        ):
            node, touches, elements = self.posts.pop(0)
            self._count(node, touches, elements, -1)
            stopped.append(node)
        return stopped
