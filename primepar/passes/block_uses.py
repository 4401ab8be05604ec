"""The blocks that instructions use, and the positions in one rank's list where a block is used.

Of `primepar.schedule.effects` with two additions: a sum also reads the block that it adds to, and a
wait uses the blocks of its post. Example: `isend a; compute b += c; wait` uses a at positions 0 and
2, where it may not change in between, and b and c at position 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from primepar.schedule.effects import effects, initial_blocks
from primepar.schedule.program import (
    Alloc,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Instruction,
    Join,
    Program,
    Wait,
)
from primepar.schedule.sharing import kept, shared

Names = tuple[str, ...]
Size = Callable[[str], int | None]
"""From a block to its number of elements; None if it is unknown."""
LOCAL = frozenset({Compute, Alloc, Free, Fetch, Evict, Cut, Join})
"""Instructions without communication."""


class UsedBlocks(NamedTuple):
    """Blocks that an instruction uses. A wait has none itself: see `RankList.uses`."""

    reads: Names
    made: Names
    """Blocks that it makes or changes; the target of a sum is read too."""
    gone: Names
    """Blocks that do not exist after it, unless it makes them again."""
    changes: Names
    """Blocks that it makes, changes or frees."""
    names: Names
    """All of them, each once."""


class Rank:
    """The blocks that the instructions of one rank use, with a cache."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._known: dict[int, tuple[Instruction, UsedBlocks]] = kept(("rank", rank), dict)

    def touched(self, node: Instruction) -> UsedBlocks:
        """Return the blocks that one instruction uses."""
        known = self._known.get(id(node))
        return self._learned(node) if known is None else known[1]

    def all_touched(self, nodes: Iterable[Instruction]) -> list[UsedBlocks]:
        """Return the blocks that each of some instructions uses."""
        known, learned = self._known.get, self._learned
        return [learned(node) if (pair := known(id(node))) is None else pair[1] for node in nodes]

    def _learned(self, node: Instruction) -> UsedBlocks:
        reads, made, gone, *_ = effects(node, self.rank)
        # `g += x * dy` reads g too: it may not be made later than its sum is read, nor freed
        # between.
        if type(node) is Compute:
            reads += made
        changes = made + gone
        used = UsedBlocks(reads, made, gone, changes, (*dict.fromkeys(reads + changes),))
        # The cache keeps the instruction too, so that its id stays unique.
        self._known[id(node)] = (node, used)
        return used


def request_of(node: Instruction) -> str | None:
    """Return the request of a posted message or collective, or of a wait; else None."""
    request: str | None = getattr(node, "request", None)
    return request


class LiveBlocks:
    """The live blocks of one rank; a posted receive is live from its post."""

    def __init__(self, size: Size, rank: Rank, initial: Iterable[str]) -> None:
        self._size, self._rank = size, rank
        self._blocks = {name: size(name) or 0 for name in initial}
        self.total = sum(self._blocks.values())

    def do(self, node: Instruction) -> int:
        """Advance by one instruction; returns the increase of the live elements."""
        used = self._rank.touched(node)
        return self.change(used.made, used.gone)

    def change(self, made: Names, gone: Names) -> int:
        """Advance by what makes and frees some blocks; returns as `do` does."""
        blocks, grown = self._blocks, 0
        # First what goes: an instruction that frees x and makes it again adds nothing.
        for name in gone:
            grown -= blocks.pop(name, 0)
        for name in made:
            if name not in blocks:
                blocks[name] = self._size(name) or 0
                grown += blocks[name]
        self.total += grown
        return grown

    def peak(self, nodes: Iterable[Instruction]) -> int:
        """Advance by some instructions; returns the peak: the largest number of live elements.

        The elements before the first instruction count too.
        """
        most = self.total
        for node in nodes:
            if self.do(node) > 0:
                most = max(most, self.total)
        return most

    def missing(self, made: Names) -> int:
        """Return the elements of blocks that an instruction makes and that are not live yet."""
        blocks = self._blocks
        return sum([self._size(name) or 0 for name in made if name not in blocks])


class RankList:
    """One rank's instructions, and for every block the sorted positions where it is used.

    A posted message uses its blocks at its post and at its wait. Between the two (without a wait,
    to the end of the list) they are in flight. Example: in `isend a; compute b; wait`, block `a`
    has the positions 0 and 2, and is in flight at position 1.
    """

    def __init__(
        self,
        nodes: Sequence[Instruction],
        rank: Rank,
        initial: Iterable[str] = (),
    ) -> None:
        self.nodes, self.rank, self.initial = nodes, rank, dict.fromkeys(initial)
        self.uses = rank.all_touched(nodes)
        """Of every instruction; a wait has those of its post."""
        self.touches: defaultdict[str, list[int]] = defaultdict(list)
        self.communicating: list[int] = []
        """Positions where messages or collectives are started or awaited."""
        self.waits: dict[int, int] = {}
        """Position of a post -> that of its wait."""
        self._flights: dict[str, list[tuple[int, int]]] = {}
        self._growth: tuple[object, list[int]] = (None, [])
        pending: dict[str, int] = {}
        touches, uses = self.touches, self.uses
        for place, node in enumerate(nodes):
            if type(node) not in LOCAL:
                self.communicating.append(place)
                if type(node) is Wait:
                    # A wait without a post is a post and a wait of nothing, at its own place: the
                    # judge refutes it, and passes leave it where it is.
                    post = pending.pop(node.request, place)
                    self.waits[post], uses[place] = place, uses[post]
                    self._add_flight(post, place)
                elif (request := request_of(node)) is not None:
                    pending[request] = place
            for name in uses[place].names:
                touches[name].append(place)
        # Never awaited: in flight until after the last instruction.
        for post in pending.values():
            self._add_flight(post, len(nodes) + 1)

    def _add_flight(self, post: int, end: int) -> None:
        for name in self.uses[post].names:
            self._flights.setdefault(name, []).append((post, end))

    def growth(self, size: Size) -> list[int]:
        """Return the live elements before the first instruction, and what each of them adds.

        A posted receive makes its block live, and its wait adds nothing.
        """
        if self._growth[0] is not size:
            live = LiveBlocks(size, self.rank, self.initial)
            growth = [live.total]
            for node, used in zip(self.nodes, self.uses, strict=True):
                # `irecv x` uses the memory of x from its post on.
                growth.append(0 if type(node) is Wait else live.change(used.made, used.gone))
            self._growth = size, growth
        return self._growth[1]

    def live(self, size: Size) -> list[int]:
        """Return the live elements before the first instruction and after each of them."""
        return list(accumulate(self.growth(size)))

    def before(self, name: str, place: int) -> int | None:
        """Return the last use of a block before a position, None if there is none."""
        touches = self.touches.get(name, ())
        count = bisect_left(touches, place)
        return touches[count - 1] if count else None

    def after(self, name: str, place: int) -> int | None:
        """Return the next use of a block after a position, None if there is none."""
        touches = self.touches.get(name, ())
        count = bisect_right(touches, place)
        return touches[count] if count < len(touches) else None

    def ready(self, places: Sequence[int]) -> int:
        """Return the last position before some posts where their blocks are used; -1 for none."""
        names = {name for place in places for name in self.uses[place].names}
        uses = (self.before(name, places[0]) for name in names)
        return max((use for use in uses if use is not None), default=-1)

    def needed(self, places: Sequence[int]) -> int:
        """Return the first position after posts and their waits where a result is used."""
        uses = (
            self.after(name, self.waits.get(place, place))
            for place in places
            for name in self.uses[place].made
        )
        return min((use for use in uses if use is not None), default=len(self.nodes))

    def between(self, name: str, first: int, last: int) -> Sequence[int]:
        """Return the uses of a block strictly between two positions."""
        touches = self.touches.get(name, ())
        return touches[bisect_right(touches, first) : bisect_left(touches, last)]

    def is_waiting(self, first: int, last: int) -> bool:
        """Return whether messages or collectives are started or awaited between two positions."""
        return bisect_right(self.communicating, first) < bisect_left(self.communicating, last)

    def is_absent(self, name: str, place: int) -> bool:
        """Return whether a block does not exist just before the instruction at a position."""
        last = self.before(name, place)
        if last is None:
            return name not in self.initial
        # `free x` was its last use; a cut in place names x, and x is gone after it too.
        used = self.uses[last]
        return name in used.gone and name not in used.made

    def is_in_flight(self, name: str, place: int) -> bool:
        """Return whether a block is in flight at a position."""
        flights = self._flights.get(name)
        # Strictly between: at its post and at its wait a block is used, and not only in flight.
        return flights is not None and any(post < place < end for post, end in flights)


@shared("programs", "initial")
def rank_lists(program: Program) -> tuple[RankList, ...]:
    """Return the lists of all ranks."""
    by_rank = enumerate(zip(program.programs, initial_blocks(program), strict=True))
    return tuple(RankList(nodes, Rank(rank), initial) for rank, (nodes, initial) in by_rank)


def with_lists(program: Program, lists: Iterable[Iterable[Instruction]]) -> Program:
    """Return the program with other lists; the same program if they are the same."""
    programs = tuple(map(tuple, lists))
    return program if programs == program.programs else replace(program, programs=programs)
