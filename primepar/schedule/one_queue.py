"""Programs that end on a GPU whatever its queues: each rank runs its operations one after another.

NCCL promises less than a program means. On a rank the operations of a communicator run in the order
of their posts. Those of two communicators may wait for each other too: their streams share a few
hardware queues, and the first message between two ranks holds up the host until both are there. All
of this is allowed if a program ends in **one queue**: an operation of a rank starts when the one
before it has ended, on whatever communicator. Adjacent posts of a communicator are one operation, a
batch, whose messages do not wait for each other. For example, ranks 0 and 1 both do

    irecv; compute; isend; wait         the receive is first in both queues, and waits for a send
                                        that is behind the other one: the program hangs
    compute; irecv; isend; wait         a batch of two directions: it ends

`in_one_queue` makes the second of the first. It runs the program with one unit of time for each
product. A message fires when both sides have been posted and have their time; a collective when all
calls have. There the posts move, on every rank, between the post in the program and the wait for
it. So the operations of all ranks have one order, that of firing, and the first one that has not
ended can always run. Nothing else changes: not which message matches which, as posts of a channel
fire in their order, and no block, as none is used between its post and its wait. What overlapped
a product still does. A receive that was posted long before its send moves to it. This is ours.
"""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec.structs import replace

from primepar.errors import ProgramError
from primepar.schedule.evidence import Place
from primepar.schedule.matching import Matches
from primepar.schedule.program import Compute, Instruction, Program
from primepar.schedule.transport import Transport
from primepar.schedule.waits import NEVER, WaitGraph, cycle_of, levels
from primepar.schedule.words import NCCL_ADVICE, order_sentence

ONE_QUEUE = Transport(order="queue")
FIRES, GOES_ON = 0, 1
"""What happens first at one time: a message fires before a rank begins its next product."""


def out_of_order(program: Program, matches: Matches | None = None) -> str | None:
    """Return why a program hangs where each rank has one queue; None if it ends.

    It names the first two operations that wait for each other. Messages and calls without a
    partner are not its question: `primepar verify` refutes those before. `matches` are those of the
    program, if they are known.
    """
    cycle = cycle_of(_queues(matches or Matches(program)))
    return None if cycle is None else order_sentence(cycle, program, NCCL_ADVICE)


def check_order(program: Program) -> None:
    """Raise `ProgramError` for a program that hangs where each rank has one queue."""
    hangs = out_of_order(program)
    if hangs is not None:
        raise ProgramError(
            "program: expected one that ends on NCCL, where the operations of a rank may run one "
            f"after another, got one where {hangs}"
        )


def in_one_queue(program: Program, matches: Matches | None = None) -> Program:
    """Return the program with its posts where they end in one queue; itself if they do.

    A program that hangs under rendezvous, or whose groups demand two orders, is returned as it is.
    `matches` are those of the program, if they are known.
    """
    matches = matches or Matches(program)
    if matches.faults or NEVER not in levels(_queues(matches)):
        return program
    return moved_in_order(matches) or program


def moved_in_order(matches: Matches) -> Program | None:
    """Return the program of `matches`, which hangs in one queue, where it ends; None where none."""
    # A post moves between its place and its wait: without waits, as in Cannon's, nothing can move.
    changed = _Firing(matches).moved() if matches.posted and not matches.leaked else None
    # No cycle is looked for: most of the time would go into what nobody reads.
    ends = changed is not None and NEVER not in levels(_queues(Matches(changed)))
    return changed if ends else None


def _queues(matches: Matches) -> WaitGraph:
    return WaitGraph(matches, ONE_QUEUE, joins_posts=True)


class _Firing:
    """A run of a program in which every operation fires at one moment on all of its ranks."""

    def __init__(self, matches: Matches) -> None:
        self.matches = matches
        self.lists: list[list[Instruction]] = [[] for _ in matches.program.programs]
        self.clock = [0] * len(self.lists)
        self._next = [0] * len(self.lists)
        self._posted: set[Place] = set()
        """Operations that have been posted and have not fired."""
        self._fired: set[Place] = set()
        self._queue: list[tuple[int, int, Place]] = []
        """Time, what happens, and the rank's next instruction or the last post of what fires."""

    def moved(self) -> Program | None:
        """Return the program in the order of firing, None if it does not end."""
        program = self.matches.program
        for rank in range(program.ranks):
            self._until_product(rank)
        while self._queue:
            _, what, (rank, index) = heappop(self._queue)
            if what == FIRES:
                self._fire(self._together((rank, index)))
            else:
                self.lists[rank].append(program.programs[rank][index])
                self.clock[rank] += 1
                self._next[rank] += 1
                self._until_product(rank)
        ended = all(i == len(nodes) for i, nodes in zip(self._next, program.programs, strict=True))
        return replace(program, programs=tuple(map(tuple, self.lists))) if ended else None

    def _until_product(self, rank: int) -> None:
        """Let a rank go on to its next product, or to what it has to wait for."""
        for index in range(self._next[rank], len(self.matches.program.programs[rank])):
            self._next[rank] = index
            node, of = self.matches.node((rank, index)), self.matches.effects[rank][index]
            place = (rank, index)
            if isinstance(node, Compute):
                heappush(self._queue, (self.clock[rank], GOES_ON, place))
                return
            # A post only makes its operation ready; into the list it goes when it fires. So all
            # ranks list it at the same moment of this run.
            if of.posts and place not in self._fired:
                if place not in self._posted:
                    self._posted.add(place)
                    if self._together(place):
                        heappush(self._queue, (self.clock[rank], FIRES, place))
                if of.blocks:
                    return
            if of.awaits is not None and self.matches.posted[place] not in self._fired:
                return
            if not of.posts:
                self.lists[rank].append(node)
        self._next[rank] = len(self.matches.program.programs[rank])

    def _together(self, place: Place) -> list[Place]:
        """Return what fires with an operation: its other sides, and those of their groups.

        Nothing if one of them has not been posted.
        """
        reached = {place: None}
        # A group fires as one, so all partners of all its messages fire with it: the list grows
        # while it is read.
        for operation in (ready := [place]):
            if operation not in self._posted:
                return []
            for side in self.matches.sides(operation):
                for rank, index, _ in self.matches.partners.get(side, ()):
                    if (rank, index) not in reached:
                        reached[rank, index] = None
                        ready.append((rank, index))
        return sorted(reached)

    def _fire(self, operations: list[Place]) -> None:
        """Put operations into the lists of their ranks, and wake the ranks that waited for them."""
        # A rank that waited goes on at the time of the last one that arrived.
        now = max((self.clock[rank] for rank, _ in operations), default=0)
        for rank, index in operations:
            self._posted.remove((rank, index))
            self._fired.add((rank, index))
            self.lists[rank].append(self.matches.program.programs[rank][index])
        for rank in {rank for rank, _ in operations}:
            node = self._next[rank]
            if node < len(self.matches.program.programs[rank]) and not isinstance(
                self.matches.node((rank, node)), Compute
            ):
                self.clock[rank] = max(self.clock[rank], now)
                self._until_product(rank)
