"""Does the planner reproduce PrimePar's evaluation? Its figures 2 and 7 to 10, computed again.

Wang et al., ASPLOS 2024, section 6, measured on 32 V100. Megatron's plan is the fastest over all
degrees of data parallelism, by the same cost model. `docs/render_reproduction.py` writes the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log
from statistics import mean
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec.structs import replace as changed

from benchmarks.scores import kendall
from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.models.sizes import MODELS
from primepar.partition import parse_sequence
from primepar.partition.by_dimension import BySequence
from primepar.plan.cluster import Cluster, Link, load_cluster
from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.linear import Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.presets import PRESETS
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import Given, SearchResult
from primepar.plan.search.row import Split
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName
from primepar.plan.search.splits import Sequences, Splits
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule import Linear, Movement, lower
from primepar.schedule.layout import Cells, Layout, redistribution
from primepar.schedule.lowering import layout
from primepar.schedule.signature import Tensor

# Numbers of the paper. Labels printed in a figure are exact to their last digit. Heights of bars
# measured in the PDF are accurate to about 0.01 of the figure's unit.

DEVICES: Final = (4, 8, 16, 32)
"""Numbers of GPUs of Table 2 and of figures 7 and 8."""
NAMES: Final = MappingProxyType(
    {
        "opt-6.7b": "OPT 6.7B",
        "opt-175b": "OPT 175B",
        "llama-2-7b": "Llama 2 7B",
        "llama-2-70b": "Llama 2 70B",
        "bloom-7b1": "BLOOM 7B1",
        "bloom-176b": "BLOOM 176B",
    }
)
"""Models of `primepar.models.sizes`, as the paper calls them."""

FIGURE_2: Final = MappingProxyType({"opt-6.7b": 0.415, "llama-2-70b": 0.384, "bloom-176b": 0.646})
"""Printed: share of all-reduces in a step of Megatron on 16 GPUs, in 4 copies, one in each node."""

FIGURE_7: Final = MappingProxyType(
    {
        "opt-6.7b": (1.16, 1.18, 1.16, 1.20),
        "opt-175b": (1.11, 1.35, 1.38, 1.39),
        "llama-2-7b": (1.16, 1.19, 1.20, 1.21),
        "llama-2-70b": (1.15, 1.21, 1.24, 1.26),
        "bloom-7b1": (1.15, 1.18, 1.18, 1.19),
        "bloom-176b": (1.11, 1.43, 1.68, 1.60),
    }
)
"""Printed: throughput over Megatron's, by the number of GPUs."""

FIGURE_8: Final = MappingProxyType(
    {
        "opt-6.7b": (0.89, 0.90, 0.93, 0.93),
        "opt-175b": (0.92, 0.80, 0.80, 0.79),
        "llama-2-7b": (0.90, 0.91, 0.93, 0.92),
        "llama-2-70b": (0.91, 0.88, 0.91, 0.89),
        "bloom-7b1": (0.89, 0.90, 0.93, 0.92),
        "bloom-176b": (0.92, 0.78, 0.69, 0.68),
    }
)
"""Printed: peak memory over Megatron's, by the number of GPUs."""


class Collectives(NamedTuple):
    """A group of bars of figure 9, left: an MLP under Megatron's plan and PrimePar's.

    `ratio` is printed: collective latency over Megatron's. `computing` is measured in the figure:
    the share of Megatron's time outside collectives.
    """

    model: str
    devices: int
    batch: int
    ratio: float
    computing: float


FIGURE_9: Final = (
    Collectives("opt-175b", 8, 8, 0.346, 0.547),
    Collectives("opt-175b", 8, 16, 0.622, 0.694),
    Collectives("llama-2-70b", 8, 8, 0.512, 0.528),
    Collectives("llama-2-70b", 8, 16, 0.591, 0.655),
    Collectives("opt-175b", 16, 8, 0.222, 0.258),
    Collectives("opt-175b", 16, 16, 0.199, 0.412),
    Collectives("llama-2-70b", 16, 8, 0.365, 0.373),
    Collectives("llama-2-70b", 16, 16, 0.230, 0.482),
)
FIGURE_9_MLP: Final = MappingProxyType(
    {
        "Megatron": (167, 168, 24, 165, 166, 364, 162, 164, 41, 377),
        "PrimePar": (81, 81, 82, 82, 157, 80, 88, 81, 88, 85, 82, 86, 82, 128),
    }
)
"""Printed, figure 9, right: milliseconds of the MLP of OPT-175B, 8 GPUs, batch 8, in order.

The redistribution of PrimePar's plan is drawn small and has no label.
"""

SPLITS: Final = (
    Split(2, 1, 16), Split(2, 2, 8), Split(2, 4, 4), Split(4, 1, 8), Split(4, 2, 4), Split(8, 1, 4),
)  # fmt: skip
"""Splits of 32 GPUs in figure 10."""


class Throughputs(NamedTuple):
    """Bars of one model in figure 10 by `SPLITS`, over Megatron's first; None is not drawn."""

    megatron: tuple[float | None, ...]
    primepar: tuple[float, ...]


FIGURE_10: Final = MappingProxyType(
    {
        "opt-6.7b": Throughputs(
            (1.00, 1.30, 1.87, 1.21, 1.56, 1.40), (1.24, 1.72, 1.88, 1.60, 1.57, 1.41)
        ),
        "opt-175b": Throughputs(
            (1.00, 0.94, 0.66, 0.87, 0.55, 0.50), (1.46, 1.16, 0.67, 1.08, 0.56, 0.51)
        ),
        "llama-2-7b": Throughputs(
            (1.00, 1.25, 1.87, 1.16, 1.56, 1.41), (1.47, 1.72, 1.89, 1.60, 1.58, 1.42)
        ),
        "llama-2-70b": Throughputs(
            (None, 1.00, 0.87, 0.93, 0.72, 0.65), (1.25, 1.26, 0.91, 1.17, 0.76, 0.68)
        ),
        "bloom-7b1": Throughputs(
            (1.00, 1.32, 1.89, 1.23, 1.57, 1.42), (1.36, 1.82, 1.90, 1.69, 1.59, 1.43)
        ),
        "bloom-176b": Throughputs(
            (1.00, 0.88, 0.58, 0.82, 0.48, 0.44), (1.40, 1.11, 0.61, 1.03, 0.51, 0.46)
        ),
    }
)
"""Measured in the figure: throughput over Megatron's at (2, 1, 16), Llama 2 70B's at (2, 2, 8)."""


# What the paper does not state and a reproduction has to choose, once for all points

LARGE: Final = 100e9
"""Parameters of the models that have a batch of their own."""


@dataclass(frozen=True)
class _Counting(Training):
    """Training in which each parameter counts as `counted` bytes."""

    counted: int = field(kw_only=True)

    def parameter(
        self,
        elements: float,
        whole: float,
        summed: Sequence[int],
        held: Sequence[int],
        tensors: int = 1,
    ) -> dict[str, float]:
        """Terms of a cost for a parameter: all that is kept of it counts as the parameter."""
        terms = super().parameter(elements, whole, summed, held, tensors)
        return terms | {"parameters": elements * self.counted, "gradients": 0.0, "states": 0.0}


@dataclass(frozen=True)
class Setting:
    """A step of sequences of `positions` tokens through one block, in one data type.

    `batch` is the number of sequences in figures 9 and 10. Figures 7 and 8 have `per_device`
    sequences for every device: the first number for models of up to 100 billion parameters, the
    second for larger ones. Where it is None they have `batch` too.

    `parameter` is the bytes of memory counted for each parameter: the paper's formula has the
    parameter itself and the stash, and neither gradients nor an optimizer. `scores` is the number
    of copies of the attention scores kept from forward to backward: in the paper's graph softmax
    and the product with the values are two operators, and each keeps what its backward reads. The
    time of these is not counted.
    """

    batch: int = 8
    per_device: tuple[float, float] | None = (2.0, 0.5)
    positions: int = 2048
    dtype: str = "float32"
    parameter: int = 4
    scores: int = 2
    blocks: int = 8
    """Blocks of a model that is cut into pipeline stages."""
    microbatches: int = 1
    """Of every replica of a pipeline."""
    machine: Cluster = field(default_factory=partial(load_cluster, "v100-8x4"))

    def model(self, name: str) -> ModelConfig:
        """One block of a model of the paper."""
        return replace(MODELS[name], layers=1, context=self.positions)

    def step(self, name: str, devices: int) -> int:
        """Number of sequences of a step in figures 7 and 8."""
        if self.per_device is None:
            return self.batch
        return int(self.per_device[MODELS[name].parameters > LARGE] * devices)

    def planner(
        self, name: str, devices: int, space: SpaceName = "paper", batch: int | None = None
    ) -> Planner:
        """The planner of a block on `devices` devices; `batch` None is that of figures 7 and 8."""
        self.machine.check_devices(devices)
        links = ClusterLinks(self.machine, devices.bit_length() - 1)
        training = _Counting(links, self.dtype, batch or self.step(name, devices), self.positions,
                             counted=self.parameter)  # fmt: skip
        return Planner(self.model(name), training, space, part="blocks")

    def memory(self, result: SearchResult) -> float:
        """Bytes of a device: those that the planner predicts, plus the scores."""
        training, planner = result.planner.training, result.planner
        scores = training.batch * training.positions**2 * planner.model.heads
        layouts = planner.catalogue.layouts
        share = sum(
            layouts.share(int(planner.options(name).leaves[number]))
            for name, number in result.choices.items()
            if planner.named[name].kind == "attention"
        )
        return result.memory + self.scores * scores * share * training.item


SETTING = Setting()
"""The setting of every point of the reproduction."""


def megatron(planner: Planner) -> dict[int, SearchResult]:
    """Megatron's plans by their degree of data parallelism, where sizes divide."""
    return dict(_megatron(planner))


def _megatron(planner: Planner) -> Iterator[tuple[int, SearchResult]]:
    devices, model = planner.training.links.devices, planner.model
    for copies in (1 << bits for bits in range(devices.bit_length())):
        parts = devices // copies
        whole = (planner.training.batch % copies, model.heads % parts, model.kv_heads % parts)
        if not any(whole):
            yield copies, Given.with_sequences(planner, megatron_sequences(planner, copies)).result


def megatron_sequences(planner: Planner, copies: int) -> dict[str, str]:
    """Sequences of Megatron's plan with `copies` data-parallel copies, operator by operator."""
    parts = planner.training.links.devices // copies
    roles = PRESETS["megatron"].roles(parts)
    sequences = {}
    for operator in planner.operators:
        elements = [f"M{copies}"] * (copies > 1) + [roles.of(operator)] * (parts > 1)
        sequences[operator.name] = ",".join(elements)
    return sequences


def other_settings() -> dict[str, Setting]:
    """The setting with one choice changed, and the setting that was tried first."""
    inner, outer = SETTING.machine.links
    rings = {stream: changed(SETTING.machine, links=(inner, changed(outer, stream=stream)))
             for stream in (2.5e9, 4.7e9, None)}  # fmt: skip
    return {
        "8 sequences": replace(SETTING, per_device=None),
        "16 sequences": replace(SETTING, per_device=None, batch=16),
        "1 sequence for every GPU": replace(SETTING, per_device=(1.0, 1.0)),
        "a ring alone reaches 2.5 GB/s": replace(SETTING, machine=rings[2.5e9]),
        "4.7 GB/s": replace(SETTING, machine=rings[4.7e9]),
        "6.6 GB/s, as several do": replace(SETTING, machine=rings[None]),
        "8 sequences, 4.7 GB/s, AdamW": replace(
            SETTING, per_device=None, machine=rings[4.7e9], parameter=16
        ),
        "AdamW: 16 bytes for each parameter": replace(SETTING, parameter=16),
        "gradients, and no optimizer: 8 bytes": replace(SETTING, parameter=8),
        "no scores kept": replace(SETTING, scores=0),
    }


# Figures 2, 7 and 8: a block's all-reduces under Megatron; throughput and memory


@dataclass(frozen=True)
class PaperPoint:
    """One model on a number of devices: ratios to the fastest Megatron plan, and the paper's."""

    model: str
    devices: int
    copies: int
    """Megatron's degree of data parallelism."""
    seconds: float
    megatron_seconds: float
    memory: float
    megatron_memory: float
    sequences: dict[str, str]

    @property
    def speed(self) -> float:
        """Throughput over Megatron's."""
        return self.megatron_seconds / self.seconds

    @property
    def share(self) -> float:
        """Peak memory over Megatron's."""
        return self.memory / self.megatron_memory

    @property
    def printed_speed(self) -> float:
        """Throughput over Megatron's in the paper's figure 7."""
        return FIGURE_7[self.model][DEVICES.index(self.devices)]

    @property
    def printed_share(self) -> float:
        """Peak memory over Megatron's in the paper's figure 8."""
        return FIGURE_8[self.model][DEVICES.index(self.devices)]


def point(
    model: str, devices: int, setting: Setting = SETTING, space: SpaceName = "paper"
) -> PaperPoint:
    """The best plan of a space, compared with the fastest Megatron plan."""
    planner = setting.planner(model, devices, space)
    result = search(planner)
    plain = planner if space == "paper" else setting.planner(model, devices)
    copies, fastest_megatron = min(megatron(plain).items(), key=lambda item: item[1].seconds)
    return PaperPoint(
        model, devices, copies, result.seconds, fastest_megatron.seconds, setting.memory(result),
        setting.memory(fastest_megatron), result.sequences,
    )  # fmt: skip


def reduced(model: str, batch: int, setting: Setting = SETTING) -> float:
    """Figure 2: share of all-reduces in Megatron's step on 16 devices, one copy on each node."""
    changed_setting = replace(setting, batch=batch, per_device=None)
    seconds, without_sending = (
        megatron(case.planner(model, 16))[16 // setting.machine.devices_per_node].seconds
        for case in (changed_setting, without_links(changed_setting))
    )
    return 1 - without_sending / seconds


def without_links(setting: Setting) -> Setting:
    """The setting with links on which sending takes no time."""
    link = Link(setting.machine.devices, 0.0, 1e300, False)
    return replace(setting, machine=changed(setting.machine, links=(link,)))


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of numbers above 0."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


# Figure 9: an MLP under Megatron's plan and PrimePar's, by the simulator. The programs of fc1 and
# fc2 are those that are verified and executed. The activation between them is not counted, the
# redistribution between their layouts is.


@dataclass(frozen=True)
class Mlp:
    """Seconds of a training step of an MLP; in all-reduces; in redistribution between the two."""

    sequences: tuple[str, str]
    seconds: float
    collectives: float
    moving: float


def mlp_pair(bars: Collectives, setting: Setting = SETTING) -> tuple[Mlp, Mlp]:
    """A group of bars: Megatron within nodes with copies across them, and the searched plan."""
    changed_setting = replace(setting, batch=bars.batch)
    inside = changed_setting.machine.devices_per_node
    nodes = bars.devices // inside
    sequences = search(
        changed_setting.planner(bars.model, bars.devices, batch=bars.batch)
    ).sequences
    pairs = ((f"M{nodes},K{inside}", f"M{nodes},N{inside}"),
             (sequences["blocks.0.fc1"], sequences["blocks.0.fc2"]))  # fmt: skip
    megatron, primepar = (simulated(changed_setting, bars.model, pair) for pair in pairs)
    return megatron, primepar


def simulated(setting: Setting, name: str, sequences: tuple[str, str]) -> Mlp:
    """The MLP of a model under sequences of fc1 and fc2."""
    model, rows = setting.model(name), setting.batch * setting.positions
    shapes = [Linear(M=rows, N=model.hidden, K=model.fc1_columns),
              Linear(M=rows, N=model.ffn, K=model.hidden)]  # fmt: skip
    up, down = (Movement(parse_sequence(text)) for text in sequences)
    runs = [simulate(lower(movement.sequence, shape), setting.machine, setting.dtype)
            for movement, shape in zip((up, down), shapes, strict=True)]  # fmt: skip
    inner = layout(up, "forward", "O", last=True)
    redistributions = [(inner, layout(down, "forward", "I", last=False)),
            (layout(down, "backward", "dI", last=True), inner)]  # fmt: skip
    moving = sum(
        _redistribution_seconds(setting, *layouts, (rows, model.ffn)) for layouts in redistributions
    )
    products = sum(run.seconds for run in runs)
    return Mlp(sequences, products + moving, sum(map(_collectives, runs)), moving)


def _redistribution_seconds(
    setting: Setting, source: Layout, target: Layout, sizes: tuple[int, int]
) -> float:
    """Seconds to redistribute a tensor; `sizes` are its rows and columns."""
    cuts = Cells.of(source, target).bounds(sizes)
    program = changed(redistribution(source, target), tensors={"O": Tensor(cuts=cuts)})
    return float(simulate(program, setting.machine, setting.dtype).seconds)


def _collectives(run: Simulation) -> float:
    """The longest time that a rank spends in all-reduces."""
    spent = [0.0] * len(run.peak)
    for event in run.events:
        if event.op == "all_reduce":
            spent[event.rank] += event.end - event.start
    return max(spent)


# Figure 10: splits of 32 devices into stages, replicas and tensor parallelism


@dataclass(frozen=True)
class Stack:
    """Seconds of a step of some blocks of a model by `SPLITS`; None where sizes do not divide."""

    model: str
    megatron: tuple[float | None, ...]
    primepar: tuple[float | None, ...]

    @property
    def printed(self) -> Throughputs:
        """The paper's bars."""
        return FIGURE_10[self.model]

    @property
    def bars(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Throughputs over that of the Megatron plan to which the paper assigns 1."""
        base = self.megatron[self.printed.megatron.index(1.0)]
        assert base is not None, "the paper's first bar is one of ours"
        megatron, primepar = (tuple(took and base / took for took in seconds)
                      for seconds in (self.megatron, self.primepar))  # fmt: skip
        return megatron, primepar


def stacked(model: str, setting: Setting = SETTING) -> Stack:
    """All splits of a model, with stages under Megatron's plan and under the searched one."""
    blocks = replace(setting.model(model), layers=setting.blocks)
    splits = Splits(blocks, setting.machine, 32, setting.batch, setting.dtype, "paper", "blocks")

    def step_seconds(split: int, sequences: Sequences | None) -> float | None:
        size = setting.batch // SPLITS[split].replicas // setting.microbatches
        try:
            return splits.pipeline(SPLITS[split], size, sequences).seconds
        except PlanError:
            return None

    plain, searched = ([step_seconds(split, sequences) for split in range(len(SPLITS))]
                       for sequences in (_one_copy, without_row_cuts))  # fmt: skip
    return Stack(model, tuple(plain), tuple(searched))


def _one_copy(planner: Planner) -> dict[str, str]:
    return megatron_sequences(planner, 1)


def without_row_cuts(planner: Planner) -> dict[str, str]:
    """The searched plan in which linear operators cut no rows but by P.

    The paper disables its batch partition in figure 10. Here the rows of all sequences are one dim.
    """
    space = SequenceSpace.whole(planner.space, planner.training.links.bits)

    def candidates(operator: Operator) -> list[Candidate]:
        return [candidate for candidate in space.of(operator)
                if operator.kind != "linear" or not _cuts_rows(candidate)]  # fmt: skip

    return search(Planner.like(planner, candidates=candidates)).sequences


def _cuts_rows(candidate: Candidate) -> bool:
    return any(isinstance(element.primitive, BySequence) for element in candidate.elements)


def best_two(bars: Sequence[float | None]) -> list[int]:
    """Indices of the two highest bars, the highest first."""
    return sorted(range(len(bars)), key=lambda split: -(bars[split] or 0.0))[:2]


def pairs(stack: Stack) -> list[tuple[tuple[float | None, ...], tuple[float | None, ...]]]:
    """Our bars and the paper's, of Megatron and of PrimePar."""
    megatron, primepar = stack.bars
    return [(megatron, stack.printed.megatron), (primepar, stack.printed.primepar)]


def matching_splits(stacks: Sequence[Stack]) -> list[int]:
    """Number of models whose best two splits are the paper's, for Megatron and for PrimePar."""
    return [sum(set(best_two(ours)) == set(best_two(printed)) for ours, printed in plans)
            for plans in zip(*map(pairs, stacks), strict=True)]  # fmt: skip


def most_microbatches(printed: Throughputs) -> float:
    """The most microbatches with which 1F1B explains the paper's Megatron bars without replicas."""
    bars = dict(zip(SPLITS, printed.megatron, strict=True))
    one, other = (bars[split] for split in SPLITS if split[0] > 2 and split[1] == 1)
    ratio = (one or 0.0) / (other or 1.0)
    return (7 - 3 * ratio) / (ratio - 1) if ratio > 1 else float("inf")


# What the agreement is worth: gains, orders, and what a constant would score

WITHIN = 0.25
"""Ratios to the paper's that count as near, above and below 1."""
POINTS = 0.1
"""Shares that count as near: 10 points."""
_STEPS = 100
"""Constants are hundredths."""


@dataclass(frozen=True)
class Constant:
    """A number that stands for every point: how many of the paper's it is near, and the farthest.

    Example: 1.2 for the printed ratios 1.0, 1.2 and 2.0 is near two, and off by 40% at most.
    """

    value: float
    near: int
    farthest: float


def constant(printed: Iterable[float]) -> Constant:
    """The constant, in tenths, whose farthest point is nearest; it knows nothing of any plan."""
    ratios = list(printed)
    tenths = range(int(10 * min(ratios)), int(10 * max(ratios)) + 2)
    return min((_scored(tenth / 10, ratios) for tenth in tenths), key=lambda score: score.farthest)


def _scored(value: float, ratios: Sequence[float]) -> Constant:
    apart = [abs(value / ratio - 1) for ratio in ratios]
    return Constant(value, sum(ratio <= WITHIN for ratio in apart), max(apart))


def constant_share(printed: Iterable[float]) -> Constant:
    """The constant share that is within 10 points of the most printed ones."""
    shares = list(printed)
    scores = (_scored_share(step / _STEPS, shares) for step in range(_STEPS))
    return max(scores, key=lambda score: (score.near, -score.farthest))


def _scored_share(value: float, shares: Sequence[float]) -> Constant:
    apart = [abs(value - share) for share in shares]
    return Constant(value, sum(points <= POINTS + 1e-9 for points in apart), max(apart))


@dataclass(frozen=True)
class Gains:
    """Our numbers next to the paper's: how far they are apart, and whether their order is one.

    `off` and `constant_off` are means over all points of the distance to the paper's number: ours,
    and that of the best `constant`, which is chosen after looking.
    """

    tau: float
    off: float
    constant: float
    constant_off: float

    @classmethod
    def of(cls, ours: Sequence[float], printed: Sequence[float]) -> Gains:
        """Compare two lists of the same points."""
        value = min(printed, key=lambda number: _apart([number] * len(printed), printed))
        return cls(kendall(ours, printed), _apart(ours, printed), value,
                   _apart([value] * len(printed), printed))  # fmt: skip


def _apart(ours: Sequence[float], printed: Sequence[float]) -> float:
    return mean(abs(one - other) for one, other in zip(ours, printed, strict=True))


@dataclass(frozen=True)
class Agreement:
    """Figures 7 and 8: geometric means, points of figure 7 within 25%, of figure 8 within 10."""

    mean: float
    printed_mean: float
    near: int
    farthest: float
    near_shares: int


def agreement(points: Sequence[PaperPoint]) -> Agreement:
    """Compare the throughputs and the memory of all points with the paper's."""
    ours, theirs = (
        [getattr(point, name) for point in points] for name in ("speed", "printed_speed")
    )
    apart = [abs(one / other - 1) for one, other in zip(ours, theirs, strict=True)]
    near = sum(abs(point.share - point.printed_share) <= POINTS for point in points)
    return Agreement(geometric_mean(ours), geometric_mean(theirs),
                     sum(ratio <= WITHIN for ratio in apart), max(apart), near)  # fmt: skip


def not_large(points: Iterable[PaperPoint]) -> list[PaperPoint]:
    """The points of models of up to 100 billion parameters."""
    return [point for point in points if not is_large(point.model)]


def speed_gains(points: Iterable[PaperPoint]) -> Gains:
    """Figure 7: gains over Megatron."""
    ours, theirs = zip(*((point.speed - 1, point.printed_speed - 1) for point in points),
                       strict=True)  # fmt: skip
    return Gains.of(ours, theirs)


def saved_memory(points: Iterable[PaperPoint]) -> Gains:
    """Figure 8: memory that is saved, of Megatron's."""
    ours, theirs = zip(*((1 - point.share, 1 - point.printed_share) for point in points),
                       strict=True)  # fmt: skip
    return Gains.of(ours, theirs)


def collective_gains(pairs: Sequence[tuple[Collectives, Mlp, Mlp]]) -> Gains:
    """Figure 9: collectives of PrimePar's MLP over those of Megatron's."""
    ours = [primepar.collectives / megatron.collectives for _, megatron, primepar in pairs]
    return Gains.of(ours, [printed.ratio for printed, _, _ in pairs])


def best_gains(stacks: Sequence[Stack]) -> Gains:
    """Figure 10: gains of PrimePar's fastest split over Megatron's fastest."""
    ours, theirs = zip(*map(best_against_best, stacks), strict=True)
    return Gains.of([ratio - 1 for ratio in ours], [ratio - 1 for ratio in theirs])


def mean_gains(points: Iterable[PaperPoint]) -> tuple[float, float]:
    """Geometric mean of the throughputs over Megatron's, less 1: ours and the paper's."""
    ours, theirs = zip(*((point.speed, point.printed_speed) for point in points), strict=True)
    return geometric_mean(ours) - 1, geometric_mean(theirs) - 1


def is_large(model: str) -> bool:
    """Whether a model has more than 100 billion parameters."""
    return MODELS[model].parameters > LARGE


def best_against_best(stack: Stack) -> tuple[float, float]:
    """Figure 10: PrimePar's fastest split over Megatron's fastest, ours and the paper's."""
    (megatron, printed_megatron), (primepar, printed_primepar) = pairs(stack)
    return _best(primepar) / _best(megatron), _best(printed_primepar) / _best(printed_megatron)


def _best(bars: Sequence[float | None]) -> float:
    return max(bar for bar in bars if bar is not None)


def constant_splits(stacks: Sequence[Stack]) -> list[int]:
    """Number of models of which one pair of splits is the paper's best two, if chosen for all.

    The pair is the most frequent one, for Megatron and for PrimePar.
    """
    return [
        max(Counter(frozenset(best_two(printed)) for _, printed in plans).values())
        for plans in zip(*map(pairs, stacks), strict=True)
    ]


def split_taus(stacks: Sequence[Stack]) -> list[float]:
    """Mean over models of Kendall's tau between our bars of figure 10 and the paper's.

    For Megatron and for PrimePar; of the splits that both have.
    """
    return [mean(_tau_of_bars(*bars) for bars in plans)
            for plans in zip(*map(pairs, stacks), strict=True)]  # fmt: skip


def _tau_of_bars(ours: Sequence[float | None], printed: Sequence[float | None]) -> float:
    both = [(one, other) for one, other in zip(ours, printed, strict=True) if one and other]
    return kendall([one for one, _ in both], [other for _, other in both])
