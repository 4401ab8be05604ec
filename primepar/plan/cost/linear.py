"""Time and memory of a linear operator under a sequence (PrimePar, equation 7).

Every step of a phase takes as long as the longer of its products and of what hops meanwhile; sums
follow. What a primitive moves is read off its movement; a cut makes the rest's tensors smaller, and
its own sums are all-reduced over the device bits of all cuts that sum: the paper's group indicator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from primepar.plan.cluster import BYTES, KINDS, Cluster, Passing
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.cost.sweeps import Load, Shares, moving
from primepar.plan.search.sequence_space import Candidate
from primepar.schedule.operators import PRODUCTS, Linear, Phase

MOMENTS = 8
"""Bytes that AdamW keeps for each parameter: two moments in float32."""
MASTER = 4
"""Bytes of its float32 copy where parameters are of a shorter type."""


@dataclass(frozen=True)
class Training:
    """How a cluster trains: `batch` sequences of `positions` tokens a step, in one data type."""

    wires: ClusterLinks
    dtype: str
    batch: int
    positions: int

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.wires.cluster

    @property
    def rows(self) -> int:
        """Tokens of a step."""
        return self.batch * self.positions

    @cached_property
    def item(self) -> int:
        """Bytes of an element."""
        return BYTES[self.dtype]

    @cached_property
    def kept(self) -> int:
        """Bytes at rest for each parameter: itself, its gradient and AdamW's state."""
        return 2 * self.item + MOMENTS + (MASTER if self.item < 4 else 0)

    @cached_property
    def _rate(self) -> float:
        return self.cluster.rate(self.dtype).achieved

    @cached_property
    def _passing(self) -> dict[str, Passing]:
        return {kind: self.cluster.passing(kind) for kind in ("linear", *KINDS)}

    def seconds(self, operations: float, elements: float, kind: str = "linear") -> float:
        """Time of one device: operations at the achieved rate, elements through its memory."""
        own = self._passing[kind]
        touched = elements * self.item / own.memory_bandwidth
        return own.launch + operations / self._rate + touched

    def update(self, elements: float) -> float:
        """Time of AdamW for a parameter of which a device has so much; 0 where it is not known."""
        if "update" not in self.cluster.operators or not elements:
            return 0.0
        return self.seconds(0, elements, "update")


@dataclass(frozen=True)
class Cost:
    """Seconds of a training step, and bytes of a device: kept through it, and while it runs.

    `kept` is parameters with their gradients and optimizer state, and what forward stashes;
    `running` is what is there besides, at most: other operands, double buffers, sums.
    """

    seconds: float
    kept: float = 0.0
    running: float = 0.0


def linear_cost(
    training: Training, operator: Linear, candidate: Candidate, tied: bool = False
) -> Cost:
    """Cost of one linear operator under a sequence, over a training step.

    The weight of one that is `tied` rests elsewhere; it has a copy, and the gradient of that.
    """
    return _Linear(training, operator, candidate, tied).cost


def linear_working(training: Training, operator: Linear, candidate: Candidate) -> float:
    """Bytes of a device that are there besides what is kept while the operator runs, at most.

    Without those in flight for the next step, which the `running` of its cost has too.
    """
    return _Linear(training, operator, candidate, tied=False).working


def alike(wires: ClusterLinks, candidate: Candidate) -> tuple[object, ...]:
    """What the cost of a sequence depends on: sequences that have it alike cost the same.

    The order of the cuts says which device bits they take, and only the levels of these matter.
    """
    mover = candidate.mover
    moved = mover and (mover[0], tuple(wires.levels[bit] for bit in mover[1]))
    return (moved, *sorted((id(cut), wires.levels[bit]) for cut, bits in candidate.cuts
                         for bit in bits))  # fmt: skip


class _Linear:
    """One linear operator under one sequence, while it is costed."""

    def __init__(
        self, training: Training, operator: Linear, candidate: Candidate, tied: bool
    ) -> None:
        self.training, self.wires, self.tied = training, training.wires, tied
        self.cuts = tuple(candidate.cuts)
        mover = candidate.mover
        self.moving, self.bits = mover if mover is not None else (moving(), ())
        whole = {"I": operator.M * operator.N, "W": operator.N * operator.K,
                 "O": operator.M * operator.K}  # fmt: skip
        self.elements = {tensor: size * self._cut(tensor) for tensor, size in whole.items()}
        self.cut_bits = [bit for _, bits in self.cuts for bit in bits]
        self.operations = 2 * operator.M * operator.N * operator.K / 2 ** len(self.cut_bits)

    def _cut(self, tensor: str) -> float:
        """The share of a tensor that the cuts leave on a device."""
        share = 1.0
        for cut, _ in self.cuts:
            share *= cut.share("forward", tensor, last=tensor == "O")
        return share

    def _size(self, shares: Shares) -> float:
        """Elements on a device of what the primitive has so large shares of."""
        return sum(share * self.elements[tensor.removeprefix("d")] for tensor, share in shares)

    @property
    def cost(self) -> Cost:
        """Time and memory."""
        item, rest = self.training.item, self._resting
        weight = 2 * item if self.tied else self.training.kept
        kept = rest["W"] * weight + rest["I"] * item
        update = 0.0 if self.tied else self.training.update(rest["W"])
        return Cost(self._seconds() + update, kept, self._besides(self.moving.alive))

    @property
    def working(self) -> float:
        """Bytes besides those kept, at the busiest step, without those in flight."""
        return self._besides(self.moving.working)

    @cached_property
    def _resting(self) -> dict[str, float]:
        """Elements of a device that are kept through the step, its gradient with a weight."""
        weight = self.moving.share("forward", "W") * self.elements["W"]
        stash = self.moving.share("gradient", "I") * self.elements["I"]
        return {"W": weight, "dW": weight, "I": stash}

    def _besides(self, steps: Iterable[Shares]) -> float:
        """Bytes of tensors beyond those kept, at the busiest of some steps."""
        return self.training.item * max(
            sum(max(0.0, self._size(((tensor, share),)) - self._resting.get(tensor, 0.0))
                for tensor, share in shares)
            for shares in steps
        )  # fmt: skip

    def _seconds(self) -> float:
        levels = tuple(self.wires.levels[bit] for bit in self.bits)
        shared = tuple(link.shared for link in self.wires.links)
        total = 0.0
        for phases in self.moving.phases:
            for stage in self.moving.stages(phases, levels, shared):
                work = sum(self.training.seconds(share * self.operations, self._size(touched))
                           for share, touched in stage.work)  # fmt: skip
                hops = self._transfer(stage.hops)
                overlap = self.training.cluster.overlap
                total += max(work, hops) if overlap else work + hops
                total += self._transfer(stage.returns)
            total += sum(map(self._all_reduce, phases))
        return total

    def _transfer(self, loads: tuple[Load, ...]) -> float:
        """Ports of a shared level carry what all devices behind them receive."""
        busiest = {}
        for load in loads:
            behind = 1
            if self.wires.links[load.level].shared:
                behind = 1 << sum(self.wires.levels[bit] < load.level for bit in self.cut_bits)
            size = max(map(self._size, load.ports))
            busiest[load.level] = behind * size * self.training.item
        return self.wires.transfer(busiest)

    def _all_reduce(self, phase: Phase) -> float:
        tensor = PRODUCTS[phase].writes
        bits = [bit for cut, bits in self.cuts if phase in cut.summed for bit in bits]
        size = self.moving.share(phase, tensor, last=True) * self.elements[tensor.removeprefix("d")]
        return self.wires.all_reduce(bits, size * self.training.item)
