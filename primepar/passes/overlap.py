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

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as with_node
from itertools import takewhile

from msgspec.structs import replace

from primepar.passes.block_uses import (
    LOCAL,
    LiveBlocks,
    RankList,
    Size,
    UsedBlocks,
    rank_lists,
    request_of,
    with_lists,
)
from primepar.passes.calls import Elementwise
from primepar.passes.liveness import live_sizes
from primepar.schedule.program import (
    Collective,
    Compute,
    Cut,
    Free,
    Instruction,
    IRecv,
    ISend,
    Program,
    Wait,
)

# The dependence graph of one rank's list, and instructions that are carried along it
#
# Two instructions cannot change places if one of them changes what the other one uses. What an
# instruction uses is its blocks, those of its post for a wait, and two things that are no blocks:
#
#     a request    changed by the post and by its wait, so that neither passes the other
#     ORDER        changed by everything that communicates, except waits: all ranks keep one order,
#                  so the same sends and receives match, and the same collectives meet
#
# A carried instruction stays behind until one comes that it cannot pass, or before which the pass
# releases it. So waits get as late as they can be, and posts (carried from the end of the list) as
# early; all others keep their order. Example, with the wait carried down:
#
#     isend    a                    isend    a
#     wait     a                    compute  b += c
#     compute  b += c        ->     wait     a
#     compute  a += b               compute  a += b      changes a, which the wait uses

ORDER = ("order",)


@dataclass(eq=False, slots=True)
class Step:
    """One instruction with what it uses: what it `changes`, and what else it `reads`."""

    node: Instruction
    used: UsedBlocks
    """Blocks; a wait has those of its post."""
    awaits: bool = False
    """Whether it is a wait for a post in the list."""
    request: str | None = field(init=False, default=None)
    changes: tuple[Hashable, ...] = field(init=False)
    names: tuple[Hashable, ...] = field(init=False)
    """All that it uses, each once."""

    def __post_init__(self) -> None:
        node = self.node
        self.changes, self.names = self.used.changes, self.used.names
        if type(node) not in LOCAL:
            self.request = request_of(node)
            more: list[Hashable] = [] if self.request is None else [("request", self.request)]
            more += [] if type(node) is Wait else [ORDER]
            # A post changes its request, and so does its wait: neither passes the other. Everything
            # that communicates, except waits, also changes ORDER.
            self.changes += (*more,)
            self.names += (*more,)


def steps(line: RankList) -> list[Step]:
    """Return the steps of a rank's list."""
    awaited = {wait for post, wait in line.waits.items() if post != wait}
    pairs = enumerate(zip(line.nodes, line.uses, strict=True))
    return [Step(node, used, place in awaited) for place, (node, used) in pairs]


class Carried:
    """The steps that are carried, in the order in which they were taken."""

    def __init__(self) -> None:
        self.steps: dict[Step, None] = {}
        self.frees: dict[Step, None] = {}
        """Those of them that are frees, or that round a sum, so that less is live after them."""
        self.sums: dict[Step, None] = {}
        self._users: dict[Hashable, dict[Step, None]] = {}

    def take(self, step: Step) -> None:
        """Carry another step."""
        self.steps[step] = None
        kind = type(step.node)
        if kind is Free or kind is Cut:
            self.frees[step] = None
        elif kind is Compute:
            self.sums[step] = None
        for name in step.names:
            self._users.setdefault(name, {})[step] = None

    def users(self, name: Hashable) -> Iterable[Step]:
        """Return the carried steps that use something."""
        return self._users.get(name, ())

    def stopped_by(self, step: Step) -> list[Step]:
        """Stop carrying the steps that cannot pass another one, and return them."""
        users, stopped = self._users, list[Step]()
        if users.keys().isdisjoint(step.names):
            return stopped
        for name in step.used.reads:
            for known in list(users.get(name) or ()):
                if name in known.changes:
                    self._release(known, stopped)
        for changed in step.changes:
            for known in list(users.get(changed) or ()):
                self._release(known, stopped)
        return stopped

    def release(self, step: Step) -> list[Step]:
        """Stop carrying a step, and return it after those that it cannot pass.

        A free that has nothing left to wait for follows at once: it only takes memory.
        """
        released = list[Step]()
        self._release(step, released)
        return released

    def _release(self, step: Step, released: list[Step]) -> None:
        users = self._users
        if step not in self.steps:
            return
        for name in step.names:
            # Of those taken before it: two reads may change places, all else may not. Of `wait a`,
            # `b += a` and `free a`, to release the free is to release the wait, the sum, then it.
            before: Iterator[Step] = takewhile(lambda known: known is not step, users.get(name, ()))
            if name not in step.changes:
                before = (known for known in before if name in known.changes)
            for known in [*before]:
                self._release(known, released)
        if step not in self.steps:
            return
        del self.steps[step]
        self.frees.pop(step, None)
        self.sums.pop(step, None)
        released.append(step)
        for name in step.names:
            del users[name][step]
            if not users[name]:
                del users[name]
        for name in step.names:
            # Only a free is left on the block: nothing that is carried waits for it.
            left = users.get(name, ())
            if len(left) == 1:
                (known,) = left
                if type(known.node) is Free:
                    self._release(known, released)

    def release_all(self) -> list[Step]:
        """Stop carrying anything, and return it."""
        released = list[Step]()
        while self.steps:
            self._release(next(iter(self.steps)), released)
        return released


# The pass


def overlap(program: Program) -> Program:
    """Return the program with posts as early, and waits as late, as data and memory allow."""
    size = live_sizes(program)
    return with_lists(program, (_Waits(size, line).overlapped() for line in rank_lists(program)))


class _Waits:
    """Moves the waits and the posts of one rank."""

    def __init__(self, size: Size, line: RankList) -> None:
        self.size, self.line, self.peak = size, line, max(line.live(size))

    def overlapped(self) -> list[Instruction]:
        """Return the list with waits moved down, posts up, and waits past the posts that moved."""
        given = steps(self.line)
        moved = self._with_late_waits(self._with_early_posts(self._with_late_waits(given)))
        return [step.node for step in moved]

    def _live(self) -> LiveBlocks:
        return LiveBlocks(self.size, self.line.rank, self.line.initial)

    def _with_late_waits(self, nodes: list[Step]) -> list[Step]:
        """Carry waits down, with the frees of sent blocks and the sums of received ones.

        Example: `isend a; wait; compute b; free a` becomes `isend a; compute b; wait; free a`. If
        `a` and `b` together exceed the peak, the free comes first, and the wait before it.
        """
        given, posted = _with_posts(nodes)
        live, carried, done = self._live(), Carried(), list[Step]()

        def do(released: Iterable[Step]) -> None:
            for step in released:
                _change(live, step)
                done.append(step)

        for step in given:
            if step.awaits or (carried.steps and self._follows_wait(step, carried)):
                # A wait is carried; so is what follows from it, but only while its wait is carried
                # too.
                carried.take(step)
                continue
            if carried.steps:
                do(carried.stopped_by(step))
            while carried.frees:
                # What a carried sum needs before its free: its block may not be there yet.
                sums = [live.missing(other.used.made) for other in carried.sums]
                more = 0 if type(step.node) is Wait else live.missing(step.used.made)
                if live.total + more + max(sums, default=0) <= self.peak:
                    break
                # The oldest free first, and with it the wait that it follows.
                do(carried.release(next(iter(carried.frees))))
            _change(live, step)
            done.append(step)
        do(carried.release_all())
        return _without_idle_posts(done, posted)

    def _follows_wait(self, step: Step, carried: Carried) -> bool:
        """Return whether a step moves with a carried wait: a free of its block, or a sum of it.

        So does a cut in place, which gives a carried sum of a gradient another name.
        """
        node = step.node
        if isinstance(node, Cut):
            users = carried.users(node.block)
            return node.in_place and any(node.block in known.changes for known in users)
        if isinstance(node, Free):
            users = carried.users(node.block)
            is_sent = any(known.awaits for known in users)
            is_freed = any(isinstance(known.node, Free) for known in users)
            # A sent block may be freed only after its wait, so the free goes along. A second free
            # is an error of the program, and stays where the judge finds it.
            return is_sent and not is_freed and self.size(node.block) is not None
        return (
            isinstance(node, Compute)
            and node.phase is None
            and all(
                any(known.awaits and name in known.changes for known in carried.users(name))
                for name in node.reads
            )
        )

    def _with_early_posts(self, given: list[Step]) -> list[Step]:
        """Carry posts up: the list is read backwards. They keep their order among themselves.

        What they receive is live from the post on, so it must fit together with the instructions
        that they pass. Of several that do not fit, the last ones in the list stay.
        """
        # For each step of the list as it is: what it adds, and the most that is live during it. A
        # post that passes it adds its own blocks to that.
        live, most, grown = self._live(), list[int](), list[int]()
        for step in given:
            before = live.total
            grown.append(_change(live, step))
            most.append(max(before, live.total))
        carried, elements, done = Carried(), dict[Step, int](), list[Step]()
        total = 0

        def do(released: Iterable[Step]) -> None:
            nonlocal total
            for step in released:
                total -= elements.get(step, 0)
                done.append(step)

        for step, held, new in zip(reversed(given), reversed(most), reversed(grown), strict=True):
            if step.request is not None and isinstance(step.node, ISend | IRecv | Collective):
                # A block of unknown size counts as more than fits, so its post is released at once,
                # and stays.
                known = all(self.size(name) is not None for name in step.used.made)
                elements[step] = new if known else self.peak + 1
                total += elements[step]
                carried.take(step)
                continue
            if carried.steps:
                do(carried.stopped_by(step))
            # Read backwards, the first that was carried is the last one in the list: it is the one
            # that stays.
            while carried.steps and total > self.peak - held:
                do(carried.release(next(iter(carried.steps))))
            done.append(step)
        do(carried.release_all())
        return done[::-1]


def _change(live: LiveBlocks, step: Step) -> int:
    """Advance what is live by a step; a wait changes nothing."""
    used = step.used
    if not used.changes or type(step.node) is Wait:
        return 0
    return live.change(used.made, used.gone)


def _with_posts(given: list[Step]) -> tuple[list[Step], set[str]]:
    """Return the list with blocking collectives as a post and a wait, and the new requests."""
    done, new = list[Step](), set[str]()
    requests = {step.request for step in given}
    for step in given:
        done.append(step)
        node = step.node
        if type(node) in LOCAL or step.request is not None:
            continue
        if isinstance(node, Elementwise) and len(node.group) > 1:
            name = f"{node.__struct_config__.tag} {node.block}"
            if name not in requests:
                done[-1:] = [
                    with_node(step, node=replace(node, request=name)),
                    Step(Wait(name), step.used, awaits=True),
                ]
                new.add(name)
    return done, new


def _without_idle_posts(given: list[Step], new: set[str]) -> list[Step]:
    """Return the list with new posts as blocking collectives again if no compute hides them."""
    done, posted, computes = list[Step](), dict[str, tuple[int, int]](), 0
    for step in given if new else ():
        node, request = step.node, step.request
        if request is not None and request in new:
            # No compute between post and wait: the call blocks again. Two instructions that hide
            # nothing cost more than one.
            if isinstance(node, Wait):
                place, before = posted[request]
                if computes == before:
                    done[place] = with_node(
                        done[place], node=replace(done[place].node, request=None)
                    )
                    continue
            else:
                posted[request] = len(done), computes
        computes += type(node) is Compute
        done.append(step)
    return done if new else given
