"""Discrete-event simulation of a program: when every rank computes, waits and transfers.

Rank r is device r of the cluster. Every device computes one instruction at a time and has its
links. Where the cluster overlaps, posted transfers run during computation. Where it does not, a
device transfers only while it waits, and computes only while none of its transfers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from primepar.errors import ClusterError, DeadlockError, MismatchError, ProgramError
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.simulator.links import (
    RINGS,
    Clock,
    Network,
    PendingEnds,
    Port,
    SentByAll,
    Transfer,
    exact,
    traffic,
)
from primepar.plan.simulator.work import (
    InstructionKind,
    Scalar,
    Work,
    kind,
    label,
    refuse_host_transfers,
)
from primepar.schedule.events import Communication, Event, communication
from primepar.schedule.program import (
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Instruction,
    IRecv,
    Join,
    Message,
    Program,
    Recv,
    Wait,
    not_executable,
)
from primepar.schedule.program_file import instruction_line


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
    operations: Mapping[str, Fraction] | None = None,
    fractions: bool = False,
    passing: Mapping[str, Passing] | None = None,
    positions: int | None = None,
) -> Simulation:
    """Run a program on the first devices of a cluster; every block is of one data type.

    `operations` gives the operations per written element of phases that are not products: those of
    attention over `positions` tokens, where these are given. `passing` gives the launch time and
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
    work = Work(program, cluster, dtype, operations or {}, number, passing or {}, positions)
    return _Run(program, cluster, work, number).result()


class _Rank:
    """State of one rank: its position in its list of instructions, and its transfers."""

    __slots__ = ("computing", "moving", "open", "operations", "pending", "position", "requests",
                 "sent", "since", "stalled")  # fmt: skip

    def __init__(self) -> None:
        self.position = 0
        self.requests: dict[str, Transfer] = {}
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
        self.clock, self.in_flight = Clock(), PendingEnds()
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
            kind_of_node = kind(node)
            if kind_of_node in (InstructionKind.COMPUTES, InstructionKind.COPIES):
                self._compute(rank, state, node)  # type: ignore[arg-type]
                return
            state.position += 1
            if kind_of_node is not InstructionKind.HOLDS:
                self._communicate(rank, state, kind_of_node, node)
                if state.pending:
                    return
        for request in state.requests:
            raise MismatchError(
                f"rank {rank}: expected request {request!r} to be waited for, got the end of the "
                "program: add a wait"
            )

    def _communicate(self, rank: int, state: _Rank, kind: InstructionKind, node: Any) -> None:
        if kind is InstructionKind.WAITS:
            self._wait(state, [self._request(rank, state, node)])
        elif kind is InstructionKind.GROUPS:
            self._wait(state, [self._post(rank, message) for message in node.body])
        elif getattr(node, "request", None) is None:
            self._wait(state, [self._post(rank, node)])
        elif node.request in state.requests:
            raise self._mismatch(
                rank,
                f"a request that is not in use, got {node.request!r} again: wait for it first, or "
                "give this one another name",
            )
        else:
            state.requests[node.request] = self._post(rank, node)

    def _request(self, rank: int, state: _Rank, node: Wait) -> Transfer:
        transfer = state.requests.pop(node.request, None)
        if transfer is None:
            raise self._mismatch(
                rank, f"a wait for what was posted, got {node.request!r}: post it before"
            )
        return transfer

    def _mismatch(self, rank: int, what: str) -> MismatchError:
        return MismatchError(f"programs[{rank}][{self.ranks[rank].position - 1}]: expected {what}")

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

    def _post(self, rank: int, node: Message | Collective) -> Transfer:
        try:
            transfer = self.in_flight.post(rank, node)
        except MismatchError as error:
            place = self.ranks[rank].position - 1
            raise MismatchError(f"programs[{rank}][{place}]: {error}") from None
        if transfer.complete:
            for member in transfer.members:
                self.ranks[member].open[transfer] = None
            if self.overlap:
                self._begin(transfer)
        return transfer

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
        name = RINGS.get(type(next(iter(transfer.ends.values()))))
        most = max(sent.values(), default=0)
        collective = name and SentByAll(name, len(transfer.members), most)
        self.network.start(hops, turns, lambda: self._end(transfer, sent), collective or None)

    def _end(self, transfer: Transfer, sent: Mapping[int, Fraction | int]) -> None:
        """Record the end of a transfer, and resume the ranks that wait for nothing else."""
        now = transfer.end = self.clock.now
        for place, member in enumerate(transfer.members):
            node = transfer.ends[place]
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
        computes = kind(node) is InstructionKind.COMPUTES
        self.events.append(
            Event(
                rank=rank,
                track="compute" if computes else "communication",
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
        """The chain of waiting ranks, from the first one until a rank occurs again."""
        waiting = {rank: state for rank, state in enumerate(self.ranks) if state.pending}
        chain = [min(waiting)]
        links = []
        while chain[-1] in waiting:
            rank, state = chain[-1], waiting[chain[-1]]
            transfer = next(pending for pending in state.pending if not pending.complete)
            node = instruction_line(self.program.programs[rank][state.position - 1])
            links.append(f"rank {rank} at programs[{rank}][{state.position - 1}] ({node}) waits "
                         f"for {transfer}")  # fmt: skip
            chain.append(transfer.missing()[0])
            if chain[-1] in chain[:-1]:
                break
        else:
            links.append(f"rank {chain[-1]} has finished")
        others = len(waiting) - len(waiting.keys() & set(chain))
        more = f" (and {others} more wait)" if others else ""
        return DeadlockError(
            f"expected every rank to end, got {len(waiting)} that wait without end: "
            f"{'; '.join(links)}{more}"
        )
