"""A program on a cluster, event by event: when every rank computes, waits and moves what.

Rank r is device r of the cluster. Every device has a stream of products and its links. Products
follow one another; what is posted moves meanwhile where the cluster overlaps. Where it does not, a
device moves only while it waits, and computes only while nothing of it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from primepar.errors import ClusterError, DeadlockError, MismatchError
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.simulator.in_flight import RINGS, Message, PendingEnds, Transfer, traffic
from primepar.plan.simulator.links import Clock, Network, Port, Scalar, exact
from primepar.plan.simulator.work import InstructionKind, Operations, Work, check_known, kind, label
from primepar.schedule.events import Event
from primepar.schedule.program import (
    Collective,
    Compute,
    Cut,
    Instruction,
    IRecv,
    Join,
    Program,
    Recv,
    Wait,
)
from primepar.schedule.program_file import instruction_line


@dataclass(frozen=True)
class PortTraffic:
    """What went through one way into or out of a device, or of a group that shares a link."""

    level: int
    first: int
    """The first device behind it."""
    devices: int
    out: bool
    bytes: Fraction | int
    busy: float
    """Seconds in which something went through."""


@dataclass(frozen=True)
class Simulation:
    """What a run took. Lists are by rank; times are seconds, fractions where the run is exact."""

    seconds: Scalar
    computing: list[Scalar]
    """Seconds in which each rank computed."""
    operations: list[int]
    sent: list[Fraction | int]
    """Bytes that left each rank."""
    peak: list[int]
    """Most bytes alive at once, buffers of posted receives included."""
    traffic: list[PortTraffic]
    events: list[Event]
    """In order of start; a transfer has one on every rank that it is of."""


def simulate(
    program: Program,
    cluster: Cluster,
    dtype: str,
    operations: Mapping[str, Fraction] | None = None,
    fractions: bool = False,
    passing: Mapping[str, Passing] | None = None,
) -> Simulation:
    """Run a program on the first devices of a cluster; every block is of one data type.

    `operations` tells those of phases that are no products, for each element that they write, and
    `passing` the start and the bytes per second of phases that have their own. With `fractions`
    times are exact. What the blocks hold is not looked at: `verify` does. Raises
    `ClusterError` for too small a cluster, `ProgramError` for blocks of unknown size,
    `DeadlockError` with the ranks that wait, and `MismatchError` for ends that do not agree.
    """
    if program.ranks > cluster.devices:
        raise ClusterError(
            f"expected at most the {cluster.devices} devices of the cluster {cluster.name}, got "
            f"{program.ranks} ranks: take a larger cluster"
        )
    check_known(program)
    number = exact if fractions else float
    return _Run(program, cluster, dtype, operations or {}, number, passing or {}).result()


class _Rank:
    """Where one rank is."""

    __slots__ = ("at", "computing", "moving", "open", "operations", "pending", "requests", "sent",
                 "since", "stalled")  # fmt: skip

    def __init__(self) -> None:
        self.at = 0
        self.requests: dict[str, Transfer] = {}
        self.pending: list[Transfer] = []
        """What its instruction waits for."""
        self.open: dict[Transfer, None] = {}
        """Complete transfers that have not begun."""
        self.since: Scalar = 0
        self.moving = 0
        self.stalled = False
        """Whether a product waits for what moves."""
        self.computing: Scalar = 0
        self.operations = 0
        self.sent: Fraction | int = 0


class _Run:
    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        dtype: str,
        operations: Operations,
        number: Callable[[float | Fraction], Scalar],
        passing: Mapping[str, Passing],
    ) -> None:
        self.program, self.overlap = program, cluster.overlap
        self.work = Work(program, cluster, dtype, operations, number, passing)
        self.clock, self.wires = Clock(), PendingEnds()
        self.network = Network(cluster, self.clock, number)
        self.ranks = [_Rank() for _ in range(program.ranks)]
        self.events: list[Event] = []

    def result(self) -> Simulation:
        for rank in range(self.program.ranks):
            self.clock.at(0, self._advance, rank)
        self.clock.run(self.network.settle)
        if any(own.pending for own in self.ranks):
            raise self._deadlock()
        self.events.sort(key=lambda event: (event.start, event.rank, event.end))
        item = self.work.item
        return Simulation(
            max((event.end for event in self.events), default=0),
            [own.computing for own in self.ranks],
            [own.operations for own in self.ranks],
            [own.sent for own in self.ranks],
            [self.work.peak(rank) * item for rank in range(self.program.ranks)],
            [self._traffic(port) for port in self.network.ports],
            self.events,
        )

    def _traffic(self, port: Port) -> PortTraffic:
        behind = self.network.devices_behind(port.level)
        return PortTraffic(
            port.level, port.owner * behind, behind, port.out, port.carried, float(port.busy)
        )

    def _advance(self, rank: int) -> None:
        """Run the instructions of a rank until one takes time or waits."""
        own, instructions = self.ranks[rank], self.program.programs[rank]
        while own.at < len(instructions):
            node = instructions[own.at]
            own_kind = kind(node)
            if own_kind is InstructionKind.COMPUTES:
                self._compute(rank, own, node)  # type: ignore[arg-type]
                return
            own.at += 1
            if own_kind is not InstructionKind.HOLDS:
                self._communicate(rank, own, own_kind, node)
                if own.pending:
                    return
        for request in own.requests:
            raise MismatchError(
                f"rank {rank}: expected request {request!r} to be waited for, got the end of the "
                "program: add a wait"
            )

    def _communicate(self, rank: int, own: _Rank, kind: InstructionKind, node: Any) -> None:
        if kind is InstructionKind.WAITS:
            self._wait(own, [self._request(rank, own, node)])
        elif kind is InstructionKind.GROUPS:
            self._wait(own, [self._post(rank, each) for each in node.body])
        elif getattr(node, "request", None) is None:
            self._wait(own, [self._post(rank, node)])
        elif node.request in own.requests:
            raise self._mismatch(
                rank,
                f"a request that is not in use, got {node.request!r} again: wait for it first, or "
                "give this one another name",
            )
        else:
            own.requests[node.request] = self._post(rank, node)

    def _request(self, rank: int, own: _Rank, node: Wait) -> Transfer:
        found = own.requests.pop(node.request, None)
        if found is None:
            raise self._mismatch(
                rank, f"a wait for what was posted, got {node.request!r}: post it before"
            )
        return found

    def _mismatch(self, rank: int, what: str) -> MismatchError:
        return MismatchError(f"programs[{rank}][{self.ranks[rank].at - 1}]: expected {what}")

    # Products

    def _compute(self, rank: int, own: _Rank, node: Compute | Cut | Join) -> None:
        """Start it, unless something moves that must not meanwhile."""
        if own.moving and not self.overlap:
            own.stalled = True
            return
        own.at += 1
        seconds, start = self.work.seconds(node), self.clock.now
        own.computing += seconds
        own.operations += self.work.operations(node)
        self._note(rank, node, start, start + seconds)
        self.clock.at(start + seconds, self._advance, rank)

    # Transfers

    def _post(self, rank: int, node: Message | Collective) -> Transfer:
        try:
            found = self.wires.post(rank, node)
        except MismatchError as error:
            at = self.ranks[rank].at - 1
            raise MismatchError(f"programs[{rank}][{at}]: {error}") from None
        if found.complete:
            for member in found.members:
                self.ranks[member].open[found] = None
            if self.overlap:
                self._begin(found)
        return found

    def _wait(self, own: _Rank, transfers: list[Transfer]) -> None:
        own.pending = [each for each in transfers if each.end is None]
        own.since = self.clock.now
        if own.pending and not self.overlap:
            for each in list(own.open):
                if all(self.ranks[member].pending for member in each.members):
                    self._begin(each)

    def _begin(self, transfer: Transfer) -> None:
        transfer.begin = self.clock.now
        hops, turns = traffic(transfer, self.work.elements, self.work.item)
        sent: dict[int, Fraction | int] = {}
        for source, _, size in hops:
            sent[source] = sent.get(source, 0) + size
        for member in set(transfer.members):
            own = self.ranks[member]
            del own.open[transfer]
            own.moving += 1
            own.sent += sent.get(member, 0)
        ring = RINGS.get(type(next(iter(transfer.ends.values()))))
        self.network.start(hops, turns, lambda: self._end(transfer, sent), ring)

    def _end(self, transfer: Transfer, sent: Mapping[int, Fraction | int]) -> None:
        """Note the end of a transfer, and let go on who waits for nothing else."""
        now = transfer.end = self.clock.now
        item = self.work.item
        for place, member in enumerate(transfer.members):
            node = transfer.ends[place]
            receives = isinstance(node, (Recv, IRecv))
            elements = 0 if receives else -(-sent.get(member, 0) // item)
            self._note(member, node, transfer.begin, now, elements)
        for member in dict.fromkeys(transfer.members):
            own = self.ranks[member]
            own.moving -= 1
            if transfer in own.pending:
                own.pending = [each for each in own.pending if each.end is None]
                if not own.pending:
                    self._go_on(member, own)
            elif own.stalled and not own.moving:
                own.stalled = False
                self.clock.at(now, self._advance, member)

    def _go_on(self, rank: int, own: _Rank) -> None:
        node = self.program.programs[rank][own.at - 1]
        if isinstance(node, Wait) and own.since < self.clock.now:
            self._note(rank, node, own.since, self.clock.now)
        self.clock.at(self.clock.now, self._advance, rank)

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
        """Follow who waits for whom, from the first waiting rank until one comes again."""
        waiting = {rank: own for rank, own in enumerate(self.ranks) if own.pending}
        chain = [min(waiting)]
        links = []
        while chain[-1] in waiting:
            rank, own = chain[-1], waiting[chain[-1]]
            transfer = next(each for each in own.pending if not each.complete)
            node = instruction_line(self.program.programs[rank][own.at - 1])
            links.append(f"rank {rank} at programs[{rank}][{own.at - 1}] ({node}) waits for "
                         f"{transfer}")  # fmt: skip
            chain.append(transfer.missing()[0])
            if chain[-1] in chain[:-1]:
                break
        else:
            links.append(f"rank {chain[-1]} is through")
        others = len(waiting) - len(waiting.keys() & set(chain))
        more = f" (and {others} more wait)" if others else ""
        return DeadlockError(
            f"expected every rank to end, got {len(waiting)} that wait for ever: "
            f"{'; '.join(links)}{more}"
        )
