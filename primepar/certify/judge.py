"""The judge: decides every property of a program along an order that somebody else has found.

It searches nothing and asks no solver. A search gives it the level of every node of the wait graph
(`primepar.schedule.waits`), `NEVER` for those that are never reached. The judge checks that each
node is above all that it follows, and that what is never reached hangs: each of these nodes waits
for another one of them. Then it follows the program once along the levels, and returns every
violation as data (`primepar.schedule.evidence`). Example: two ranks that exchange a block by isend,
irecv and two waits have one level per wait; the blocks that the waits deliver are judged where they
are read.

What is decided of what:

    coverage           the products of the program against its grid
    deadlock-freedom   matches and levels
    races              the instructions of one rank at a time
    placement, alignment, completion    the run
    memory, traffic    the ledger, against what the program states
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations, product

from primepar.certify.run import WEIGHT_GRADIENT, Run, Stretch
from primepar.errors import ClaimError, UnknownSizeError
from primepar.schedule.deadline import in_time
from primepar.schedule.effects import effects
from primepar.schedule.evidence import (
    Miscovered,
    OverMemory,
    Place,
    Race,
    SharedElements,
    Side,
    SubOperator,
    Violation,
    WrongTraffic,
)
from primepar.schedule.ledger import Memory, live, sent
from primepar.schedule.matching import Matches
from primepar.schedule.meaning import Box, Meaning
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Join,
    Program,
)
from primepar.schedule.signature import Bound
from primepar.schedule.transport import RENDEZVOUS, Transport, on_pairs
from primepar.schedule.waits import NEVER, WaitGraph

_ON_ONE_RANK = Compute | Alloc | Free | Fetch | Evict | Cut | Join


class Judge:
    """The properties of one program under one transport.

    The tables of the program are made when they are first needed, and once.
    """

    def __init__(self, program: Program, transport: Transport = RENDEZVOUS) -> None:
        # NCCL then has a communicator for the two ranks of each message, so that its stream holds
        # no message to a third one.
        self.program = on_pairs(program) if transport.order == "peer" else program
        self.transport = transport

    @cached_property
    def meaning(self) -> Meaning:
        """What the names of the program mean."""
        return Meaning(self.program)

    @cached_property
    def matches(self) -> Matches:
        """Which sends meet which receives."""
        return Matches(self.program)

    @cached_property
    def graph(self) -> WaitGraph:
        """What must have happened before what."""
        return WaitGraph(self.matches, self.transport)

    def asked(self) -> Iterator[str]:
        """Yield the names of the properties that the program asks (see `verify_program`)."""
        program, maker = self.program, self.meaning.maker
        nodes = list(chain(*program.programs))
        final = set(chain(*(program.final or ()), *(program.host_final or ())))
        makers = {block: maker(block) for block in final}
        sums = [phase for phase in makers.values() if phase is not None]
        phases = {node.phase for node in nodes if isinstance(node, Compute)} - {None}
        makers_of = self.meaning.makers.keys()
        # A product that reads a sum claims that it is finished, whoever states a grid or not.
        reads_sums = any(
            self.meaning.real(template.tensor) in makers_of
            for phase in map(self.meaning.phases.__getitem__, filter(None, phases))
            for template in phase.reads
        )
        if program.grid:
            yield "coverage"
        if program.initial is not None or any(isinstance(node, _ON_ONE_RANK) for node in nodes):
            yield "placement"
        if program.grid or sums or reads_sums:
            yield "completion"
        kept = len(sums) < len(final) or any(
            phase.writes.tensor == WEIGHT_GRADIENT for phase in sums
        )
        if kept or len(phases) > 1:
            yield "alignment"
        yield "deadlock-freedom"
        yield "races"
        if program.memory is not None:
            yield "memory"
        if program.traffic is not None:
            yield "traffic"

    # Coverage

    @cached_property
    def coverage(self) -> list[Violation]:
        """Every sub-operator of each phase's grid that is not computed exactly once."""
        wrong: list[Violation] = []
        for phase, grid in (self.program.grid or {}).items():
            places: dict[tuple[int, ...], list[Place]] = {}
            outside: list[Violation] = []
            for place, slices in self._products.get(phase, ()):
                # A product outside the grid would otherwise be nobody's: the loop below asks for
                # cells of the grid alone.
                within = slices.keys() == grid.keys() and all(slices[d] < grid[d] for d in grid)
                if within:
                    places.setdefault(tuple([slices[dim] for dim in grid]), []).append(place)
                else:
                    outside.append(Miscovered(phase, slices, (place,), is_outside=True))
            wrong += outside
            for cell in in_time(product(*map(range, grid.values()))):
                computing = places.get(cell, [])
                # By enumeration, no counting: one cell twice and another one never have the right
                # number.
                if len(computing) != 1:
                    sub_operator = dict(zip(grid, cell, strict=True))
                    wrong.append(Miscovered(phase, sub_operator, tuple(computing)))
        return wrong

    @cached_property
    def _products(self) -> dict[str, list[tuple[Place, SubOperator]]]:
        """Phase -> the places that compute it; what is computed again is not counted twice."""
        products: dict[str, list[tuple[Place, SubOperator]]] = {}
        for rank, nodes in enumerate(self.program.programs):
            for index, node in enumerate(nodes):
                # Recomputed activations are products of the same sub-operator; they belong to a
                # second pass over data that was freed, and count once.
                if isinstance(node, Compute) and node.phase and not node.again:
                    of_phase = products.setdefault(node.phase, [])
                    of_phase.append(((rank, index), node.sub_operator or {}))
        return products

    # Deadlock-freedom

    def check_levels(self, level: Sequence[int]) -> None:
        """Check that levels are an order of what they reach, and that the rest hangs.

        Raises `ClaimError` for the first node with a wrong level. A node that is never reached has
        to follow another one that is not. So there is a cycle, or something that nothing matches:
        in no order is any of them reached.
        """
        before, places = self.graph.before, self.graph.places
        if len(level) != len(before):
            raise ClaimError(f"levels: expected {len(before)}, got {len(level)}")
        for node, follows in enumerate(before):
            depth = level[node]
            # That each unreached node follows another unreached one is all that a deadlock needs.
            # Start at any and go back: the way never ends, and nodes are finitely many, so it meets
            # itself. That is the cycle; a send without receive follows itself.
            if depth == NEVER:
                if all(level[earlier] != NEVER for earlier in follows):
                    raise ClaimError(
                        f"levels: expected a level of {_at(places[node])}, as all that it follows "
                        "have one, got none"
                    )
                continue
            for earlier in follows:
                # Strictly: with equal levels the wait of rank 0 could be what the wait of rank 1 is
                # for, and the other way round.
                if not NEVER < level[earlier] < depth:
                    raise ClaimError(
                        f"levels: expected {_at(places[node])} after {_at(places[earlier])}, "
                        f"got {depth} and {level[earlier]}"
                    )

    def finishes(self, level: Sequence[int]) -> bool:
        """Whether every rank comes to its end by these levels, and everything matches."""
        return NEVER not in level and not self.matches.faults

    def refuted(self, level: Sequence[int]) -> tuple[set[str], set[str]]:
        """The names of the properties that are refuted along checked levels, and of undecided ones.

        Memory or traffic is undecided if the size of a block is not defined.
        """
        wrong = {violation.of for violation in self.run(level).wrong}
        wrong |= {violation.of for violation in chain(self.coverage, self.races)}
        wrong |= set() if self.finishes(level) else {"deadlock-freedom"}
        undecided = set[str]()
        for name, violations in (("memory", self.memory()), ("traffic", self.traffic())):
            try:
                wrong |= {name} if next(violations, None) is not None else set()
            except UnknownSizeError:
                undecided.add(name)
        return wrong & set(self.asked()), undecided

    # Races

    @cached_property
    def races(self) -> list[Violation]:
        """Every access to a block in flight; first the smallest instructions, then leaked requests.

        A race depends on the instructions of one rank only: what is between a post and its wait may
        run before or after the message or collective is done.
        """
        leaked = {violation.place for violation in self.matches.leaked}
        races: list[Race | SharedElements] = []
        for rank in in_time(range(self.program.ranks)):
            races += self._races_of(rank, leaked)
        races.sort(key=lambda race: (race.place[1], race.place[0], race.block))
        return [*races, *sorted(self.matches.leaked, key=lambda leak: leak.place[::-1])]

    @property
    def racing(self) -> frozenset[tuple[Place, str]]:
        """The places that access a block in flight, with the block."""
        return frozenset((race.place, race.block) for race in self.races if isinstance(race, Race))

    def _races_of(self, rank: int, leaked: set[Place]) -> Iterator[Race | SharedElements]:
        """Yield the races of a rank: at each access, by what is in flight of the same block.

        `flights` maps a block to the sides that use it, with whether they write it. What is written
        may not even be read. It is indexed by block, so that 1,200 posted receives cost 1,200 steps
        and not their square.
        """
        flights: dict[str, list[tuple[Side, bool]]] = {}
        nodes = self.program.programs[rank]
        for index, of in enumerate(self.matches.effects[rank]):
            place, node = (rank, index), nodes[index]
            if len(of.writes) > 1 and isinstance(node, Collective):
                yield from self._shared_elements(place, of.writes)
            posts = of.posts if isinstance(node, Group) else (node,)
            apart = len({*of.reads, *of.writes}) == len(posts)
            if len(posts) > 1 and apart and not flights and of.request is None:
                continue  # messages of different blocks that are done when the group returns
            # Nothing is in flight and nothing is posted: no access can race, and most instructions
            # end here.
            if flights or len(posts) > 1 or of.request is not None:
                for part, post in enumerate(posts):
                    reads, writes, frees, *_ = effects(post, rank) if len(posts) > 1 else of
                    changed = dict.fromkeys((*writes, *frees))
                    for block in dict.fromkeys((*reads, *changed)):
                        for side, is_written in flights.get(block, ()):
                            # Two reads of one block may overlap: a block may be sent to two ranks
                            # at once.
                            if is_written or block in changed:
                                access = "written" if block in changed else "read"
                                yield self._race(place, block, access, side, leaked)
                    # Parts of one group are in flight together: a group that sends a block and
                    # receives into it races with itself.
                    if of.request is not None or len(posts) > 1:
                        for block in dict.fromkeys((*reads, *writes)):
                            flight = (*place, part), block in writes
                            flights.setdefault(block, []).append(flight)
            # A wait ends what its post started, a blocking instruction what it started itself.
            done = self.matches.posted.get(place) if of.awaits is not None else place
            if done is not None and (of.awaits is not None or (of.request is None and of.posts)):
                self._land(flights, done)

    def _land(self, flights: dict[str, list[tuple[Side, bool]]], done: Place) -> None:
        """Take what an instruction has posted out of the blocks in flight."""
        of = self.matches.effects[done[0]][done[1]]
        for block in {*of.reads, *of.writes}:
            left = [flight for flight in flights.get(block, ()) if flight[0][:2] != done]
            if left:
                flights[block] = left
            else:
                flights.pop(block, None)

    def _race(
        self, place: Place, block: str, access: str, posted: Side, leaked: set[Place]
    ) -> Race:
        request = getattr(self.matches.node(posted), "request", None)
        return Race(
            place, block, "written" if access == "written" else "read", posted,
            None if posted[:2] == place else request, posted[:2] in leaked,
        )  # fmt: skip

    def _shared_elements(self, place: Place, blocks: Sequence[str]) -> Iterator[SharedElements]:
        """Yield each two blocks that a collective delivers, and that share elements of a tensor."""
        places = {block: known for block in blocks if (known := self.meaning.place(block))}
        cuts = {block.rpartition("[")[0] for block in places}
        if len(cuts) < 2 and len(set(places.values())) == len(places):
            return  # blocks of one cut are disjoint
        for (one, first), (other, second) in combinations(places.items(), 2):
            if first.tensor == second.tensor and _meet(first.box, second.box):
                yield SharedElements(place, one, other, first.tensor)

    # What blocks hold

    def run(self, level: Sequence[int]) -> Run:
        """Follow the program along its levels, to its end if it has one.

        The levels must have been checked. Accesses that race are not looked at.
        """
        run = Run(self.matches, self.meaning, self.racing)
        # A program that hangs is followed as far as it comes: what is wrong before the deadlock is
        # reported together with it.
        run.follow(self.stretches(level))
        if self.finishes(level):
            run.end(is_right=not self.coverage and not self.races)
        return run

    def stretches(self, level: Sequence[int]) -> list[Stretch]:
        """What each rank runs without waiting, as far as it comes, in the order of the levels.

        A stretch has the level of the return that it follows: all sides that this return awaits
        have a smaller one, so what they send has been read before.
        """
        ranks = range(self.program.ranks)
        first, depth = [0 for _ in ranks], [NEVER for _ in ranks]
        hangs = [False for _ in ranks]
        stretches: list[tuple[int, Stretch]] = []
        for (rank, index), node in self.graph.returns.items():
            # Nothing of a rank runs after an instruction that never returns.
            if not hangs[rank]:
                stretches.append((depth[rank], (rank, first[rank], index + 1)))
                first[rank], depth[rank] = index + 1, level[node]
                hangs[rank] = level[node] == NEVER
        ends = [len(nodes) for nodes in self.program.programs]
        stretches += [(depth[r], (r, first[r], ends[r])) for r in ranks if not hangs[r]]
        stretches.sort()
        return [stretch for _, stretch in stretches]

    # Memory and traffic

    def memory(self) -> Iterator[Violation]:
        """Yield the first instruction of each rank at which it has more elements than allowed.

        Raises `UnknownSizeError` where the program does not define the size of a block.
        """
        bound = self.program.memory or Bound()
        limits: list[tuple[Memory, int]] = []
        limits += [] if bound.device is None else [("device", bound.device)]
        limits += [] if bound.host is None else [("host", bound.host)]
        for rank, (memory, limit) in product(range(self.program.ranks), limits):
            for now in live(self.program, rank, memory, self.meaning.size):
                if now.elements > limit:
                    yield OverMemory((rank, now.instruction), memory, limit, dict(now.held))
                    break

    def traffic(self) -> Iterator[Violation]:
        """Yield each rank that sends more or less than `traffic` states.

        Raises `UnknownSizeError` where the program does not define the size of a block.
        """
        for rank, stated in enumerate(self.program.traffic or ()):
            parts = tuple(sent(self.matches, rank, self.meaning.size))
            total = sum((count for count, _ in parts), Fraction(0))
            if total != Fraction(stated):
                yield WrongTraffic(rank, Fraction(stated), total, parts)


def _at(place: Place) -> str:
    return f"rank {place[0]}, instruction {place[1]}"


def _meet(one: Box, other: Box) -> bool:
    sides = zip(one, other, strict=False)
    return len(one) == len(other) and all(a < d and c < b for (a, b), (c, d) in sides)
