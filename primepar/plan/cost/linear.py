"""Time and memory of a linear operator under a sequence (PrimePar, equation 7).

A step of a phase takes the longer of its products and its P2P hops; reductions follow. The
transfers of a primitive are derived from its movement. A cut makes the tensors of the other
elements smaller. Partial sums are all-reduced over the device bits of all cuts that sum: the
paper's group indicator.

The cost of an operator without products is that of the kernels of a step's program (`kernels`). On
a device that has a share of rows and columns, each of them reads and writes that share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.passes.coalesce_reductions import LARGEST_BUCKET
from primepar.plan.cluster import BYTES, KINDS, Cluster, Passing, WorkTimes
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.links import ClusterLinks, PortLoad
from primepar.plan.cost.sweeps import Load, RingCall, Shares, SweepStage, moving, sent
from primepar.plan.kernels import Passes, ProgramKernels
from primepar.schedule.operators import OUTPUTS, PRODUCTS, Linear, Phase, is_wide_sum

MOMENTS = 2
"""Numbers that AdamW keeps for each parameter, in float32 at least."""
MASTER = 4
"""Bytes of the float32 copy of a parameter of a shorter type."""


@dataclass(frozen=True)
class Training:
    """Training on a cluster: `batch` sequences of `positions` tokens a step, in one data type."""

    links: ClusterLinks
    dtype: str
    batch: int
    positions: int
    replicas: ClusterLinks | None = None
    """Where there are replicas: links over which gradients are summed, instead of `links`."""
    kernels: ProgramKernels | None = None
    """Those of a step's program, whose sums and gathers of backward hide as they are posted. None
    is the paper's cost model, where all of them come after the products."""

    @property
    def sums(self) -> ClusterLinks:
        """Links over which gradients are summed."""
        return self.replicas or self.links

    @cached_property
    def holders(self) -> int:
        """Devices among which a parameter and its copies are distributed."""
        return self.links.devices * (1 if self.replicas is None else self.replicas.replicas)

    @property
    def posted(self) -> bool:
        """Whether transfers run during products, as a step's program posts them."""
        return self.kernels is not None and self.cluster.overlap

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.links.cluster

    @property
    def rows(self) -> int:
        """Tokens of a step."""
        return self.batch * self.positions

    @cached_property
    def item(self) -> int:
        """Bytes of an element."""
        return BYTES[self.dtype]

    @cached_property
    def wide_item(self) -> int:
        """Bytes of an element of a sum that is not complete, or of a statistic."""
        return max(self.item, BYTES["float32"])

    @cached_property
    def state(self) -> int:
        """Bytes of AdamW's moments of a parameter, and of its float32 copy where it is shorter."""
        return MOMENTS * self.wide_item + (MASTER if self.item < MASTER else 0)

    @cached_property
    def kept(self) -> int:
        """Bytes kept for each parameter: itself, its gradient and AdamW's state."""
        return 2 * self.item + self.state

    @cached_property
    def _work(self) -> dict[str, WorkTimes]:
        rate = self.cluster.rate(self.dtype)
        kinds = dict.fromkeys(("linear", *KINDS), rate.product())
        return {**kinds, "attention": rate.attending(self.positions)}

    @cached_property
    def _passing(self) -> dict[str, Passing]:
        return {kind: self.cluster.passing(kind) for kind in ("linear", *KINDS)}

    def seconds(
        self, operations: float, elements: float, kind: str = "linear", scores: float = 0.0
    ) -> float:
        """Seconds of a kernel: its launch, operations at the achieved rate, and memory traffic."""
        passing = self._passing[kind]
        touched = elements * self.item / passing.memory_bandwidth
        if passing.scores is not None:
            touched += scores / passing.scores
        seconds: float = self._work[kind].seconds(operations, passing.launch + touched)
        return seconds

    def attended(self, model: ModelConfig) -> float:
        """Number of keys that the kernel of attention multiplies a query with, as a mean.

        A fused kernel skips what the causal mask hides; its rates count no more than that. Where a
        cluster has no rates of attention, scores are products, and the mask saves nothing.
        """
        fused = self.cluster.rate(self.dtype).attention is not None
        return model.attended(self.positions, causal=True) if fused else float(self.positions)

    def update(self, elements: float) -> float:
        """Seconds of AdamW for `elements` of a parameter; the paper's cost model has none."""
        known = self.kernels
        return 0.0 if known is None or not elements else self.passes(known.update, elements)

    def passes(self, passes: Passes, times: float, kind: str = "update") -> float:
        """Seconds of kernels whose bytes are multiplied by `times`."""
        passing = self._passing[kind]
        return passes.starts * passing.launch + times * passes.bytes / passing.memory_bandwidth

    def parameter(
        self,
        elements: float,
        whole: float,
        summed: Sequence[int],
        held: Sequence[int],
        tensors: int = 1,
    ) -> dict[str, float]:
        """Terms of a cost for the `elements` that a device has of a `whole` parameter.

        Its gradient is summed over the devices that differ in the bits `summed`. Those that differ
        in `held` have the same elements. Several equal `tensors` are summed together.
        """
        shard = min(elements, whole / self.holders)
        size = elements * self.item
        return {
            **self.summed(elements, summed, held),
            "gather": self.sums.all_gather(held, size / self.group(held)),
            "update": tensors * self.update(elements / tensors),
            "shard_update": tensors * self.update(shard / tensors),
            "parameters": size,
            "gradients": elements * self.wide_item,
            "states": elements * self.state,
            "shard": shard * self.item,
        }

    def summed(
        self, elements: float, summed: Sequence[int], held: Sequence[int]
    ) -> dict[str, float]:
        """Seconds to sum gradients: whole ones, and shards for all devices with the same ones.

        Small ones of the same devices are coalesced into buckets, and share the start of a call.
        """
        size, bucket = elements * self.wide_item, min(1.0, elements / LARGEST_BUCKET)
        reduction = self.sums.all_reduce(summed, size, bucket)
        return {
            "reduction": reduction,
            "starting": reduction - self.sums.all_reduce(summed, size, 0.0),
            "scatter": self.sums.reduce_scatter(summed, size / self.group(held)),
        }

    def group(self, bits: Sequence[int]) -> int:
        """Devices that differ in some bits, of all replicas."""
        return self.holders // self.links.devices << len(bits)


class Cost(NamedTuple):
    """Seconds of a training step on a device, and bytes that it holds, term by term.

    Parameters, their gradients, the optimizer's states and the stash are kept through the step.
    """

    compute: float = 0.0
    """Seconds of products and of passes through memory."""
    communication: float = 0.0
    """Seconds of transfers and collectives of activations, as far as no product hides them."""
    forward: float = 0.0
    """Seconds of `compute` that are in forward."""
    forward_communication: float = 0.0
    """Seconds of `communication` that are in forward."""
    reduction: float = 0.0
    """Seconds of sums of parameters' gradients over the devices that hold the same parameters."""
    starting: float = 0.0
    """Seconds of `reduction` before bytes move, which sums next to one another have at once."""
    scatter: float = 0.0
    """Seconds of reduce-scatters instead, after which each device has a shard of the sums."""
    gather: float = 0.0
    """Seconds to all-gather parameters of which each device has such a shard."""
    update: float = 0.0
    """Seconds of the optimizer."""
    shard_update: float = 0.0
    """Seconds of the optimizer for a shard alone."""
    parameters: float = 0.0
    gradients: float = 0.0
    states: float = 0.0
    """Bytes of AdamW's moments, and of float32 copies of shorter parameters."""
    shard: float = 0.0
    """Bytes of one of equal shards of the parameters, for each device that holds the same."""
    stash: float = 0.0
    """Bytes of what forward keeps for backward."""
    unmoved: float = 0.0
    """Bytes of the stash that are the input as the operator took it, on the same device."""
    running: float = 0.0
    """Peak bytes of the rest: other operands, double buffers, partial sums."""

    @property
    def seconds(self) -> float:
        """Seconds of a training step."""
        return self.compute + self.communication + self.reduction + self.update

    @property
    def kept(self) -> float:
        """Bytes that are kept through the step."""
        return self.parameters + self.gradients + self.states + self.stash


def linear_cost(
    training: Training, operator: Linear, candidate: Candidate, tied: bool = False
) -> Cost:
    """Cost of one linear operator under a sequence, over a training step.

    A `tied` operator has no weight of its own: it holds a copy of the table, and its gradient.
    """
    return _Linear(training, operator, candidate, tied).cost


def linear_working(training: Training, operator: Linear, candidate: Candidate) -> float:
    """Peak of the transient bytes of a device while the operator runs.

    Without blocks in flight for the next step, which `Cost.running` includes.
    """
    return _Linear(training, operator, candidate, tied=False).working


def cost_key(links: ClusterLinks, candidate: Candidate) -> tuple[object, ...]:
    """What the cost of a sequence depends on: sequences with equal keys cost the same.

    The order of the cuts decides which device bits they take, and only their levels matter.
    """
    mover = candidate.mover
    moved = mover and (mover[0], tuple(links.levels[bit] for bit in mover[1]))
    return (moved, *sorted((id(cut), links.levels[bit]) for cut, bits in candidate.cuts
                         for bit in bits))  # fmt: skip


class _Linear:
    """Evaluation of the cost of one linear operator under one sequence."""

    def __init__(
        self, training: Training, operator: Linear, candidate: Candidate, tied: bool
    ) -> None:
        self.training, self.links, self.tied = training, training.links, tied
        self.cuts, self.steps = tuple(candidate.cuts), candidate.steps
        mover = candidate.mover
        self.moving, self.bits = mover if mover is not None else (moving(), ())
        whole = {"I": operator.M * operator.N, "W": operator.N * operator.K,
                 "O": operator.M * operator.K}  # fmt: skip
        self.whole = whole["W"]
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
        """Elements on a device, by the primitive's shares of the tensors."""
        return sum(share * self.elements[tensor.removeprefix("d")] for tensor, share in shares)

    def _sent(self, shares: Shares) -> float:
        """Bytes of messages with shares of the tensors."""
        return sum(self._size((share,)) * self._item(share[0]) for share in shares)

    @property
    def cost(self) -> Cost:
        """Time and memory."""
        training, rest = self.training, self._kept
        summed = [bit for cut, bits in self.cuts if "gradient" in cut.summed for bit in bits]
        held = [bit for cut, bits in self.cuts for bit in bits if cut.share("forward", "W") == 1]
        weight = training.parameter(rest["W"], self.whole, summed, held)
        if self.tied:
            weight |= dict.fromkeys(("update", "shard_update", "states", "gather"), 0.0)
        (forward, backward), later = self._seconds(), 0.0
        if training.posted:
            backward, later = self._posted_backward()
            weight["reduction"] += later
        stash = rest["I"] * training.item
        return Cost(
            compute=forward.compute + backward.compute,
            communication=forward.communication + backward.communication,
            forward=forward.compute, forward_communication=forward.communication,
            stash=stash, unmoved=stash * self.moving.keeps_input,
            running=self._besides(self.moving.live), **weight,
        )  # fmt: skip

    @property
    def working(self) -> float:
        """Transient bytes at the busiest step, without those in flight."""
        return self._besides(self.moving.working)

    @cached_property
    def _kept(self) -> dict[str, float]:
        """Elements of a device that are kept through the step; a weight has its gradient."""
        weight = self.moving.share("forward", "W") * self.elements["W"]
        stash = self.moving.share("gradient", "I") * self.elements["I"]
        return {"W": weight, "dW": weight, "I": stash}

    def _besides(self, steps: Iterable[Shares]) -> float:
        """Bytes of tensors in addition to those kept, at the busiest of some steps."""
        return self.training.item * max(
            sum(max(0.0, self._size(((tensor, share),)) - self._kept.get(tensor, 0.0))
                for tensor, share in shares)
            for shares in steps
        )  # fmt: skip

    def _seconds(self) -> tuple[Cost, Cost]:
        """Seconds of forward, and of backward with the gradient of the weight."""
        forward, *others = map(self._sweep, self.moving.phases)
        return forward, Cost(*map(sum, zip(*others, strict=True)))

    def _sweep(self, phases: tuple[Phase, ...]) -> Cost:
        """Seconds of the products of a sweep, and of the transfers that they do not hide."""
        levels = tuple(self.links.levels[bit] for bit in self.bits)
        shared = tuple(link.shared for link in self.links.by_level)
        compute = communication = 0.0
        overlap, stages = self.training.cluster.overlap, self.moving.stages(phases, levels, shared)
        for stage in stages:
            work = sum(self.training.seconds(share * self.operations, self._size(touched))
                       for share, touched in stage.work)  # fmt: skip
            compute += work
            gathers = sum(map(self._call, stage.gathers))
            if overlap:
                communication += max(0.0, gathers + self._transfer(stage.hops) - work)
            else:
                communication += gathers
            communication += self._transfer(stage.returns) + sum(map(self._call, stage.sums))
        if not overlap:
            communication += self._longest([load for stage in stages for load in stage.hops])
        communication += self._joined(stages)
        communication += sum(self._all_reduce(phase) for phase in phases if phase != "gradient")
        return Cost(compute=compute, communication=communication)

    def _posted_backward(self) -> tuple[Cost, float]:
        """Seconds of backward where transfers are posted, and of sums of dW that nothing awaits.

        A device computes one product after another, and its links carry one transfer after another.
        What a product reads was posted when the one before it began, or at the start where it comes
        from a home; I last, as dW alone needs it. The sum of dI is posted after its products.
        Example of sequence parallelism, `Ks4`:

            compute    dI += dO W    dW += I dO        wait
            links      I             sum of dI
        """
        levels = tuple(self.links.levels[bit] for bit in self.bits)
        shared = tuple(link.shared for link in self.links.by_level)
        clock = links = summed = compute = later = last_product = 0.0
        sweeps = {phases: self.moving.stages(phases, levels, shared)
                  for phases in self.moving.phases[1:]}  # fmt: skip
        arrived: dict[Phase, float] = {}
        has_homes = self.moving.sequence.has_homes
        own_part = dict.fromkeys(sweeps, 1.0)
        for phases, steps in sweeps.items() if has_homes else ():
            # The roots of a step receive nothing: each device waits for its own blocks alone.
            waited = self._longest([load for stage in steps for load in stage.hops])
            own_part[phases] = waited / (sum(self._transfer(stage.hops) for stage in steps) or inf)

        def post(stage: SweepStage, phases: tuple[Phase, ...], begin: float) -> None:
            nonlocal links
            for phase in phases:
                late = phase == "gradient" if len(phases) > 1 else None
                took = own_part[phases] * self._arriving(stage, late)
                links = max(links, begin) + took if took else links
                arrived[phase] = links if took else 0.0

        for phases, (opening, *_) in sweeps.items():
            post(opening, phases, 0.0)
        for phases, (_, *stages) in sweeps.items():
            for stage in stages:
                here = dict(arrived)
                post(stage, phases, 0.0 if has_homes else clock)
                for phase, (share, touched) in zip(phases, stage.work, strict=True):
                    took = self.training.seconds(share * self.operations, self._size(touched))
                    clock = max(clock, here[phase]) + took
                    compute += took
                    if phase == "backward":
                        last_product = clock
                returned = self._transfer(stage.returns) + sum(map(self._call, stage.sums))
                if returned and phases[-1] == "gradient" and "dI" not in self._summed(stage):
                    later += returned
                elif returned:
                    links = summed = max(links, last_product) + returned
            clock += self._joined(sweeps[phases])
            took = self._all_reduce("backward") if "backward" in phases else 0.0
            if took:
                links = summed = max(links, last_product) + took
        end = max(clock, summed)
        return Cost(compute=compute, communication=end - compute), later + max(0.0, links - end)

    @staticmethod
    def _summed(stage: SweepStage) -> set[str]:
        """The tensors of which a step sends sums to their homes."""
        mixes = (tensor for load in stage.returns for mix in load.ports for tensor, _ in mix)
        return {*mixes, *(call.tensor for call in stage.sums)}

    def _arriving(self, stage: SweepStage, late: bool | None) -> float:
        """Seconds of what arrives during a step: `late` what dW alone reads, I, or the rest."""
        if late is None:
            return self._transfer(stage.hops) + sum(map(self._call, stage.gathers))
        calls = [call for call in stage.gathers if (call.tensor == "I") == late]
        hops = []
        for load in stage.hops:
            mixes = [tuple(share for share in mix if (share[0] == "I") == late)
                     for mix in load.ports]  # fmt: skip
            if any(mixes):
                pieces = tuple(piece for piece in load.pieces if (piece[0] == "I") == late)
                hops.append(load._replace(ports=tuple(mixes), pieces=pieces))
        return self._transfer(tuple(hops)) + sum(map(self._call, calls))

    def _transfer(self, loads: tuple[Load, ...]) -> float:
        """Seconds of hops; a port of a shared level carries what all devices behind it receive."""
        return self.links.transfer({
            load.level: self._load(load, max(map(self._sent, load.ports)), load.messages)
            for load in loads
        })  # fmt: skip

    def _load(self, load: Load, sent: float, messages: int) -> PortLoad:
        """What a port receives, with all devices behind it."""
        behind = self._behind(load.level)
        largest = max(self._sent((piece,)) for piece in load.pieces)
        return PortLoad(behind * sent, min(sent, largest), behind * messages)

    def _joined(self, stages: tuple[SweepStage, ...]) -> float:
        """Seconds to join what arrives before the first products to what is there.

        Besides, sums that return in messages are added to those at home.
        """
        opening, first, *_ = stages
        arrived = {tensor for load in opening.hops for mix in load.ports for tensor, _ in mix}
        touched = max(
            (self._size(tuple(share for share in shares if share[0] in arrived))
             for _, shares in first.work), default=0.0)  # fmt: skip
        added = max((self._sent(mix) for stage in stages for load in stage.returns
                     for mix in load.ports), default=0.0)  # fmt: skip
        sizes = touched * self.training.item, added
        return sum(float(self.links.rearranged(size)) for size in sizes if size)

    def _call(self, call: RingCall) -> float:
        """Seconds of a collective over devices of the primitive."""
        size = self.elements[call.tensor.removeprefix("d")] * self._item(call.tensor)
        bits = [self.bits[bit] for bit in call.bits]
        return self.links.ring(bits, *sent(call, size), call.name)

    def _behind(self, level: int) -> int:
        """Number of devices behind a port of a level, along the bits of the cuts."""
        if not self.links.by_level[level].shared:
            return 1
        return 1 << sum(self.links.levels[bit] < level for bit in self.cut_bits)

    def _longest(self, loads: Iterable[Load]) -> float:
        """Seconds of the port that takes longest, over all steps of a sweep.

        Where no product hides a transfer, a step ends for each device as soon as it has its own
        blocks. Example: in a step of SUMMA the roots send and receive nothing, and the next step
        has other roots.
        """
        seconds: dict[tuple[int, int], float] = {}
        for load in loads:
            for port, mix, messages in load.by_port:
                received = self._load(load, self._sent(mix), messages)
                arrival = self.links.arrival(load.level, received)
                place = load.level, port
                seconds[place] = seconds.get(place, 0.0) + arrival
        return max(seconds.values(), default=0.0)

    def _all_reduce(self, phase: Phase) -> float:
        tensor = PRODUCTS[phase].writes
        bits = [bit for cut, bits in self.cuts if phase in cut.summed for bit in bits]
        size = self.moving.share(phase, tensor, last=True) * self.elements[tensor.removeprefix("d")]
        return self.links.all_reduce(bits, size * self._item(tensor))

    def _item(self, tensor: str) -> int:
        """Bytes of an element of a tensor that is sent."""
        wide = tensor in OUTPUTS and is_wide_sum(tensor, self.steps)
        return self.training.wide_item if wide else self.training.item
