"""Discrete-event simulation of a program: when every rank computes, waits and transfers.

Rank r is device r of the cluster. Every device computes one instruction at a time and has its
links. Where the cluster overlaps, posted transfers run during computation. Where it does not, a
device transfers only while it waits, and computes only while none of its transfers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from primepar.errors import ClusterError, DeadlockError, MismatchError, ProgramError
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.kernels import NO_ATTENTION, Attention
from primepar.plan.simulator.links import (
    RINGS,
    Clock,
    Network,
    Port,
    SentByAll,
    Transfer,
    exact,
    traffic,
)
from primepar.plan.simulator.work import (
    Scalar,
    Work,
    computes,
    label,
    refuse_host_transfers,
)
from primepar.schedule.events import Communication, Event, communication
from primepar.schedule.evidence import Side
from primepar.schedule.matching import Matches
from primepar.schedule.program import (
    Compute,
    Cut,
    Evict,
    Fetch,
    Instruction,
    IRecv,
    Join,
    Program,
    Recv,
    Wait,
    not_executable,
)
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.schedule.words import sentence


@dataclass(frozen=True)
class PortTraffic:
    """Bytes through one direction of a device's link, or of a link that a group shares."""

    level: int
    first: int
    """The first device of the link."""
    devices: int
    out: bool
    bytes: Fraction | int
    busy: float
    """Seconds in which the link carried bytes."""


@dataclass(frozen=True)
class Simulation:
    """Result of a run. Lists are by rank; times are seconds, fractions where the run is exact."""

    seconds: Scalar
    computing: list[Scalar]
    """Seconds in which each rank computed."""
    operations: list[int]
    sent: list[Fraction | int]
    """Bytes that left each rank."""
    peak: list[int]
    """Peak of live bytes, buffers of posted receives included."""
    traffic: list[PortTraffic]
    events: list[Event]
    """In order of start; a transfer has one event on every rank that takes part."""
    work: Work = field(compare=False, repr=False)
    """The program, with the bytes and operations of its instructions."""
    communication: list[Communication]
    """Time of every rank in which it communicated, and the part of it that was hidden."""
    left_out: int = 0
    """Layers that have no events."""


def simulate(
    program: Program,
    cluster: Cluster,
    dtype: str,
    attention: Attention = NO_ATTENTION,
    fractions: bool = False,
    passing: Mapping[str, Passing] = MappingProxyType({}),
) -> Simulation:
    """Run a program on the first devices of a cluster; every block is of one data type.

    `attention` has the operations of phases that are not products, `passing` the launch time and
    bytes per second of phases that have their own. With `fractions` times are exact. What the
    blocks hold is not checked here, but by `verify`. Raises `ClusterError` for too small a cluster,
    `ProgramError` for blocks of unknown size, `DeadlockError` with the ranks that wait, and
    `MismatchError` for sends, receives and collectives that do not match.
    """
    if program.ranks > cluster.devices:
        raise ClusterError(
            f"expected at most the {cluster.devices} devices of the cluster {cluster.name}, got "
            f"{program.ranks} ranks: take a larger cluster"
        )
    unknown = not_executable(program)
    if unknown is not None:
        raise ProgramError(
            f"expected a program that the simulator prices, got {unknown}: only verify "
            "and check know it"
        )
    refuse_host_transfers(program, cluster)
    number = exact if fractions else float
    work = Work(program, cluster, dtype, number, attention, passing)
    return _Run(program, cluster, work, number).result()


class _Rank:
    """State of one rank: its position in its list of instructions, and its transfers."""

    __slots__ = ("computing", "moving", "open", "operations", "pending", "position", "sent",
                 "since", "stalled")  # fmt: skip

    def __init__(self) -> None:
        self.position = 0
        self.pending: list[Transfer] = []
        """Transfers that its instruction waits for."""
        self.open: dict[Transfer, None] = {}
        """Complete transfers that have not begun."""
        self.since: Scalar = 0
        self.moving = 0
        self.stalled = False
        """Whether a computation waits for running transfers."""
        self.computing: Scalar = 0
        self.operations = 0
        self.sent: Fraction | int = 0


class _Run:
    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        work: Work,
        number: Callable[[float | Fraction], Scalar],
    ) -> None:
        self.program, self.cluster, self.work = program, cluster, work
        self.overlap = cluster.overlap
        self.clock, self.matches = Clock(), Matches(program)
        for wrong in (*self.matches.faults, *self.matches.leaked):
            raise MismatchError(sentence(wrong, program))
        self.transfers: dict[tuple[Side, ...], Transfer] = {}
        self.network = Network(cluster, self.clock, number)
        self.ranks = [_Rank() for _ in range(program.ranks)]
        self.events: list[Event] = []

    def result(self) -> Simulation:
        for rank in range(self.program.ranks):
            self.clock.schedule(0, self._advance, rank)
        self.clock.run(self.network.settle)
        if any(state.pending for state in self.ranks):
            raise self._deadlock()
        self.events.sort(key=lambda event: (event.start, event.rank, event.end))
        return Simulation(
            max((event.end for event in self.events), default=0),
            [state.computing for state in self.ranks],
            [state.operations for state in self.ranks],
            [state.sent for state in self.ranks],
            [self.work.peak(rank) for rank in range(self.program.ranks)],
            [self._traffic(port) for port in self.network.ports],
            self.events,
            self.work,
            communication(self.events),
        )

    def _traffic(self, port: Port) -> PortTraffic:
        behind = self.cluster.devices_behind(port.level)
        return PortTraffic(
            port.level, port.owner * behind, behind, port.out, port.carried, float(port.busy)
        )

    def _advance(self, rank: int) -> None:
        """Run the instructions of a rank until one takes time or waits."""
        state, instructions = self.ranks[rank], self.program.programs[rank]
        while state.position < len(instructions):
            node = instructions[state.position]
            if computes(node) or isinstance(node, Fetch | Evict):
                self._compute(rank, state, node)  # type: ignore[arg-type]
                return
            place = rank, state.position
            state.position += 1
            for side in self.matches.sides(place):
                self._post(side)
            awaited = self.matches.awaited(place)
            if awaited:
                self._wait(state, [self.transfers[self.matches.partners[side]] for side in awaited])
                if state.pending:
                    return

    # Products

    def _compute(self, rank: int, state: _Rank, node: Compute | Cut | Join | Fetch | Evict) -> None:
        """Start a computation, unless a running transfer forbids it.

        What follows a copy from or to the host waits for it.
        """
        if state.moving and not self.overlap:
            state.stalled = True
            return
        state.position += 1
        seconds, start = self.work.seconds(node), self.clock.now
        if not isinstance(node, Fetch | Evict):
            state.computing += seconds
            state.operations += self.work.operations(node)
        self._note(rank, node, start, start + seconds)
        self.clock.schedule(start + seconds, self._advance, rank)

    # Transfers

    def _post(self, side: Side) -> None:
        sides = self.matches.partners[side]
        transfer = self.transfers.get(sides)
        if transfer is None:
            members, posts = zip(*((of[0], self.matches.post(of)) for of in sides), strict=True)
            transfer = self.transfers[sides] = Transfer(members, posts)
        transfer.missing -= 1
        if not transfer.missing:
            for member in transfer.members:
                self.ranks[member].open[transfer] = None
            if self.overlap:
                self._begin(transfer)

    def _wait(self, state: _Rank, transfers: list[Transfer]) -> None:
        state.pending = [transfer for transfer in transfers if transfer.end is None]
        state.since = self.clock.now
        if state.pending and not self.overlap:
            for transfer in list(state.open):
                if all(self.ranks[member].pending for member in transfer.members):
                    self._begin(transfer)

    def _begin(self, transfer: Transfer) -> None:
        transfer.begin = self.clock.now
        hops, turns = traffic(transfer, self.work.bytes)
        sent: dict[int, Fraction | int] = {}
        for source, _, size in hops:
            sent[source] = sent.get(source, 0) + size
        for member in set(transfer.members):
            state = self.ranks[member]
            del state.open[transfer]
            state.moving += 1
            state.sent += sent.get(member, 0)
        name = RINGS.get(type(transfer.posts[0]))
        most = max(sent.values(), default=0)
        collective = name and SentByAll(name, len(transfer.members), most)
        self.network.start(hops, turns, lambda: self._end(transfer, sent), collective or None)

    def _end(self, transfer: Transfer, sent: Mapping[int, Fraction | int]) -> None:
        """Record the end of a transfer, and resume the ranks that wait for nothing else."""
        now = transfer.end = self.clock.now
        for member, node in zip(transfer.members, transfer.posts, strict=True):
            named = label(node, member).partition(" ")[0]
            item = self.work.bytes.item(named)
            receives = isinstance(node, (Recv, IRecv))
            elements = 0 if receives else -(-sent.get(member, 0) // item)
            self._note(member, node, transfer.begin, now, elements)
        for member in dict.fromkeys(transfer.members):
            state = self.ranks[member]
            state.moving -= 1
            if transfer in state.pending:
                state.pending = [pending for pending in state.pending if pending.end is None]
                if not state.pending:
                    self._go_on(member, state)
            elif state.stalled and not state.moving:
                state.stalled = False
                self.clock.schedule(now, self._advance, member)

    def _go_on(self, rank: int, state: _Rank) -> None:
        node = self.program.programs[rank][state.position - 1]
        if isinstance(node, Wait) and state.since < self.clock.now:
            self._note(rank, node, state.since, self.clock.now)
        self.clock.schedule(self.clock.now, self._advance, rank)

    def _note(
        self, rank: int, node: Instruction, start: Scalar, end: Scalar, elements: int = 0
    ) -> None:
        self.events.append(
            Event(
                rank=rank,
                track="compute" if computes(node) else "communication",
                op=str(node.__struct_config__.tag),
                block=node.accumulates if isinstance(node, Compute) else label(node, rank),
                start=start,
                end=end,
                phase=getattr(node, "phase", "") or "",
                peer=getattr(node, "peer", None),
                elements=elements,
                sub_operator=getattr(node, "sub_operator", None) or {},
            )
        )

    def _deadlock(self) -> DeadlockError:
        cycle = cycle_of(WaitGraph(self.matches))
        assert cycle is not None, "ranks that wait without end wait for one another"
        waits, _, _ = sentence(cycle, self.program).partition("\n")
        return DeadlockError(f"expected every rank to end, got some that never do: {waits}")
