"""Posts messages as early, and waits for them as late, as their data allow, across operators.

A wait moves down to the next use of its blocks, past all instructions that do not use them. A free
of a sent block moves down with the wait, and so does the addition of a received block. A blocking
collective becomes a post and a wait if a compute can run in between: the all-reduces of the
gradients overlap with the rest of backward. Then posts move up to the previous use of their blocks.
The order of posts, and of blocking instructions, stays the same on every rank, so the same sends
and receives match.

Why it is correct: no post or wait passes an instruction that uses one of its blocks, so every
instruction reads the same data as before. And no deadlock arises: an earlier post or a later wait
removes dependencies between ranks and adds none. So a program without a cycle stays without one.

    compute     g += x * dy                compute     g += x * dy
    all_reduce  g over 0,1                 all_reduce  g over 0,1, posted
    compute     dx += dy * w      ->       compute     dx += dy * w
    compute     new += old * g             wait        all_reduce g
                                           compute     new += old * g

Memory: a received block is live from its post, a sent one until its free. No move raises the peak
of live elements of its rank, as `live_sizes` counts them. Blocks of unknown size do not become live
earlier and do not stay live longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import LOCAL, NOTHING, Rank, UsedBlocks, followed, request_of
from primepar.passes.liveness import LiveBlocks, Size, live_sizes
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
"""Collectives that can become posted ones."""


def overlap(program: Program) -> Program:
    """Return the program with posts as early, and waits as late, as data and memory allow."""
    size, lists = live_sizes(program), []
    by_rank = zip(program.programs, initial_blocks(program), strict=True)
    for number, (nodes, initial) in enumerate(by_rank):
        rank = Rank(number)
        peak = LiveBlocks(size, rank, initial).peak(nodes)
        late = _Late(LiveBlocks(size, rank, initial), size, rank, peak).list(nodes)
        early = _early(late, LiveBlocks(size, rank, initial), size, rank, peak)
        # Once more: waits can now pass the posts that moved up.
        lists.append(tuple(_Late(LiveBlocks(size, rank, initial), size, rank, peak).list(early)))
    programs = tuple(lists)
    return program if programs == program.programs else replace(program, programs=programs)


@dataclass(eq=False)
class _Held:
    """A wait, or a free or a sum after it, that is not emitted yet."""

    node: Instruction
    touches: UsedBlocks
    post: int | None = None
    """Position of its collective, which stays blocking unless computes follow before the wait."""
    computes: int = 0
    """Number of computes emitted before that collective."""


class _Late:
    """Moves waits of one rank down.

    Instructions are emitted in order. A wait is held back until an instruction uses one of its
    blocks; then all held waits and frees of these blocks are emitted first. A free of a sent block
    is held with its wait, and so is the addition of a received block with its free. A free is
    emitted early if memory would exceed the peak, after what uses its block. Example:
    `isend a; wait; compute b; free a` becomes `isend a; compute b; wait; free a`.
    """

    def __init__(self, live: LiveBlocks, size: Size, rank: Rank, peak: int) -> None:
        self.live, self.size, self.rank, self.peak = live, size, rank, peak
        self.done: list[Instruction] = []
        self.computes = 0
        self.held: dict[_Held, None] = {}
        self.frees: dict[_Held, None] = {}
        """The held frees."""
        self.by_block: dict[str, dict[_Held, None]] = {}
        self.by_request: dict[str, _Held] = {}

    def list(self, nodes: Sequence[Instruction]) -> list[Instruction]:
        """Return the rank's list with its waits moved down."""
        requests = {request_of(node) for node in nodes}
        for node, used in followed(nodes, self.rank):
            if not isinstance(node, Wait):
                self._follow(node, used, requests)
            elif used is NOTHING:
                self._do(node)
            else:
                self._hold(_Held(node, used))
        for held in list(self.held):
            self._release(held)
        return self.done

    def _follow(self, node: Instruction, used: UsedBlocks, requests: set[str | None]) -> None:
        if self._is_sent_block(node) or self._is_received_sum(node):
            self._hold(_Held(node, used))
            return
        self._release_conflicting(used)
        request = request_of(node)
        if request in self.by_request:
            self._release(self.by_request[str(request)])
        self._release_frees(node)
        if request is None and isinstance(node, _BLOCKING) and len(node.group) > 1:
            name = f"{node.__struct_config__.tag} {node.block}"
            if name not in requests:
                self._hold(_Held(Wait(name), used, len(self.done), self.computes))
        self._do(node)

    def _is_received_sum(self, node: Instruction) -> bool:
        """Return whether a sum should move down with the waits of the blocks that it adds."""
        return (
            isinstance(node, Compute)
            and node.phase is None
            and all(
                any(isinstance(held.node, Wait) and name in held.touches.changes
                    for held in self.by_block.get(name, ()))
                for name in node.reads
            )
        )  # fmt: skip

    def _is_sent_block(self, node: Instruction) -> bool:
        """Return whether a free should move down with the wait of a message with its block."""
        if not isinstance(node, Free):
            return False
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
        elif isinstance(held.node, Free):
            self.frees[held] = None

    def _release_conflicting(self, used: UsedBlocks) -> None:
        """Emit the held instructions that must come before an instruction with these uses."""
        if not self.held:
            return
        for name in used.reads:
            for held in list(self.by_block.get(name) or ()):
                if held in self.held and name in held.touches.changes:
                    self._release(held)
        for name in used.changes:
            for held in list(self.by_block.get(name) or ()):
                self._release(held)

    def _release_frees(self, node: Instruction) -> None:
        """Emit held frees until the memory for an instruction is below the peak."""
        if not self.frees:
            return
        for held in list(self.frees):
            if self.live.after(node) + self._largest_sum() <= self.peak:
                return
            self._release(held)

    def _largest_sum(self) -> int:
        """Return what a held sum needs before its free: one whose block is not there yet."""
        sums = (held.node for held in self.held if isinstance(held.node, Compute))
        return max(map(self.live.after, sums), default=self.live.total) - self.live.total

    def _release(self, held: _Held) -> None:
        """Emit a held instruction, after the earlier held ones that use the same blocks."""
        if held not in self.held:
            return
        names = dict.fromkeys((*held.touches.reads, *held.touches.changes))
        for name in [] if isinstance(held.node, Wait) else names:
            for earlier in takewhile(lambda other: other is not held, list(self.by_block[name])):
                self._release(earlier)
        if held not in self.held:
            return
        del self.held[held]
        for name in names:
            del self.by_block[name][held]
        if isinstance(held.node, Wait):
            self._finish(held, held.node)
        else:
            self.frees.pop(held, None)
            self._do(held.node)
        for other in [holder for name in names for holder in self.by_block[name]]:
            if isinstance(other.node, Free) and len(self.by_block[other.node.block]) == 1:
                self._release(other)

    def _finish(self, held: _Held, wait: Wait) -> None:
        """Emit a wait; a blocking collective becomes posted only if computes came after it."""
        del self.by_request[wait.request]
        if held.post is not None:
            if held.computes == self.computes:
                return
            post: Any = self.done[held.post]
            self.done[held.post] = replace(post, request=wait.request)
        self._do(wait)

    def _do(self, node: Instruction) -> None:
        self.live.do(node)
        self.computes += isinstance(node, Compute)
        self.done.append(node)


def _early(
    nodes: list[Instruction], live: LiveBlocks, size: Size, rank: Rank, peak: int
) -> list[Instruction]:
    """Return the list with its posts moved up.

    The list is read backwards. Posts are carried along until an instruction uses one of their
    blocks, blocks itself, or leaves no memory for the received blocks.
    """
    most, new = [], []
    for node in nodes:
        before = live.total
        new.append(live.do(node))
        most.append(max(before, live.total))
    held, done = _Posts(), list[Instruction]()
    steps = list(zip(followed(nodes, rank), most, new, strict=True))
    for (node, used), before_or_after, grown in reversed(steps):
        if isinstance(node, ISend | IRecv | Collective) and request_of(node) is not None:
            known = all(size(name) is not None for name in used.made)
            held.take(node, used, grown if known else peak + 1)
            continue
        blocks = type(node) not in LOCAL and type(node) is not Wait
        done += held.stopped_by(used, request_of(node), blocks, peak - before_or_after)
        done.append(node)
    done += held.stopped_by(NOTHING, None, True, 0)
    return done[::-1]


class _Posts:
    """Posts that are carried up the list; the last one in the list comes first."""

    def __init__(self) -> None:
        self.posts: list[tuple[Instruction, UsedBlocks, int]] = []
        self.reads, self.changes = dict[str, int](), dict[str, int]()
        self.requests = dict[str, int]()
        self.elements = 0

    def take(self, node: Instruction, used: UsedBlocks, elements: int) -> None:
        """Carry another post; `elements` become live with it."""
        self.posts.append((node, used, elements))
        self._count(node, used, elements, 1)

    def _count(self, node: Instruction, used: UsedBlocks, elements: int, times: int) -> None:
        self.elements += times * elements
        counted = (
            (self.requests, (str(request_of(node)),)),
            (self.reads, used.reads),
            (self.changes, used.changes),
        )
        for counts, names in counted:
            for name in names:
                counts[name] = counts.get(name, 0) + times
                if not counts[name]:
                    del counts[name]

    def stopped_by(
        self, used: UsedBlocks, request: str | None, blocks: bool, room: int
    ) -> list[Instruction]:
        """Remove and return the posts that cannot pass an instruction, the last first.

        A post cannot pass if it uses the instruction's blocks, if its elements exceed `room`, if
        the instruction `blocks`, or if it comes after such a post.
        """
        stopped: list[Instruction] = []
        while self.posts and (
            blocks
            or self.elements > room
            or str(request) in self.requests
            or not self.changes.keys().isdisjoint(used.reads)
            or not self.changes.keys().isdisjoint(used.changes)
            or not self.reads.keys().isdisjoint(used.changes)
        ):
            node, touches, elements = self.posts.pop(0)
            self._count(node, touches, elements, -1)
            stopped.append(node)
        return stopped
