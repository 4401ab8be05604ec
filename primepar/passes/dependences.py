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
from dataclasses import dataclass
from itertools import takewhile

from primepar.passes.block_uses import LOCAL, NOTHING, Rank, followed, request_of
from primepar.schedule.program import Cut, Free, Instruction, Wait

ORDER = ("order",)


@dataclass(eq=False)
class Step:
    """One instruction with what it uses: what it `changes`, and what else it `reads`."""

    node: Instruction
    reads: tuple[Hashable, ...]
    changes: tuple[Hashable, ...]
    awaits: bool = False
    """Whether it is a wait for a post in the list."""


def steps(nodes: Iterable[Instruction], rank: Rank) -> Iterator[Step]:
    """Yield the steps of a rank's list."""
    for node, used in followed(nodes, rank):
        changes: tuple[Hashable, ...] = used.changes
        if type(node) in LOCAL:
            yield Step(node, used.reads, changes)
            continue
        request = request_of(node)
        if request is not None:
            changes = (*changes, ("request", request))
        awaits = isinstance(node, Wait)
        changes = changes if awaits else (*changes, ORDER)
        yield Step(node, used.reads, changes, awaits and used is not NOTHING)


class Carried:
    """The steps that are carried, in the order in which they were taken."""

    def __init__(self) -> None:
        self.steps: dict[Step, None] = {}
        self.frees: dict[Step, None] = {}
        """Those of them that are frees, or that round a sum, so that less is live after them."""
        self._users: dict[Hashable, dict[Step, None]] = {}

    def take(self, step: Step) -> None:
        """Carry another step."""
        self.steps[step] = None
        if isinstance(step.node, Free | Cut):
            self.frees[step] = None
        for name in (*step.reads, *step.changes):
            self._users.setdefault(name, {})[step] = None

    def users(self, name: Hashable) -> Iterable[Step]:
        """Return the carried steps that use something."""
        return self._users.get(name, ())

    def stopped_by(self, step: Step) -> Iterator[Step]:
        """Stop carrying the steps that cannot pass another one, and yield them."""
        if not self.steps:
            return
        for name in step.reads:
            for known in list(self.users(name)):
                if name in known.changes:
                    yield from self.release(known)
        for name in step.changes:
            for known in list(self.users(name)):
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
        for name in names:
            del self._users[name][step]
        yield step
        for known in [user for name in names for user in self.users(name)]:
            if isinstance(known.node, Free) and len(self._users[known.node.block]) == 1:
                yield from self.release(known)

    def release_all(self) -> Iterator[Step]:
        """Stop carrying anything, and yield it."""
        for step in list(self.steps):
            yield from self.release(step)
