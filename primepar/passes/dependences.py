"""The dependence graph of one rank's list, and instructions that are carried along it.

Two instructions cannot change places if one of them changes what the other one uses. What an
instruction uses is its blocks, those of its post for a wait, and two things that are no blocks:

    a request    changed by the post and by its wait, so that neither passes the other
    ORDER        changed by everything that communicates, except waits: all ranks keep one order,
                 so the same sends and receives match, and the same collectives meet

A pass chooses which instructions it carries, in which direction, and until when at most: that is
its priority. A carried instruction stays behind until one comes that it cannot pass, or before
which the pass releases it. So waits get as late as they can be, and posts (carried from the end of
the list) as early; all others keep their order. Example, with the wait carried down:

    isend    a                    isend    a
    wait     a                    compute  b += c
    compute  b += c        ->     wait     a
    compute  a += b               compute  a += b      changes a, which the wait uses
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from primepar.passes.block_uses import (
    LOCAL,
    NOTHING,
    Names,
    Rank,
    UsedBlocks,
    followed,
    request_of,
)
from primepar.schedule.program import Compute, Cut, Free, Instruction, Wait

ORDER = ("order",)


@dataclass(eq=False, slots=True)
class Step:
    """One instruction with what it uses: what it `changes`, and what else it `reads`."""

    node: Instruction
    used: UsedBlocks
    """Blocks; a wait has those of its post."""
    awaits: bool = False
    """Whether it is a wait for a post in the list."""
    changes: tuple[Hashable, ...] = field(init=False)

    def __post_init__(self) -> None:
        node = self.node
        self.changes = self.used.changes
        if type(node) not in LOCAL:
            request = request_of(node)
            if request is not None:
                self.changes += (("request", request),)
            if type(node) is not Wait:
                self.changes += (ORDER,)

    @property
    def reads(self) -> Names:
        """Blocks that it reads."""
        return self.used.reads


def steps(nodes: Iterable[Instruction], rank: Rank) -> list[Step]:
    """Return the steps of a rank's list."""
    return [
        Step(node, used, type(node) is Wait and used is not NOTHING)
        for node, used in followed(nodes, rank)
    ]


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
        for name in (*step.reads, *step.changes):
            self._users.setdefault(name, {})[step] = None

    def users(self, name: Hashable) -> Iterable[Step]:
        """Return the carried steps that use something."""
        return self._users.get(name, ())

    def stopped_by(self, step: Step) -> Iterator[Step]:
        """Stop carrying the steps that cannot pass another one, and yield them."""
        users = self._users
        for name in step.reads:
            for known in list(users.get(name) or ()):
                if name in known.changes:
                    yield from self.release(known)
        for changed in step.changes:
            for known in list(users.get(changed) or ()):
                yield from self.release(known)

    def release(self, step: Step) -> Iterator[Step]:
        """Stop carrying a step, and yield it after those that it cannot pass.

        A free that has nothing left to wait for follows at once: it only takes memory.
        """
        if step not in self.steps:
            return
        names = dict.fromkeys((*step.reads, *step.changes))
        for name in names:
            # Of those taken before it: two reads may change places, all else may not.
            for known in takewhile(lambda other: other is not step, list(self.users(name))):
                if name in step.changes or name in known.changes:
                    yield from self.release(known)
        if step not in self.steps:
            return
        del self.steps[step]
        self.frees.pop(step, None)
        self.sums.pop(step, None)
        for name in names:
            del self._users[name][step]
        yield step
        for known in [user for name in names for user in self.users(name)]:
            if type(known.node) is Free and len(self._users[known.node.block]) == 1:
                yield from self.release(known)

    def release_all(self) -> Iterator[Step]:
        """Stop carrying anything, and yield it."""
        for step in list(self.steps):
            yield from self.release(step)
