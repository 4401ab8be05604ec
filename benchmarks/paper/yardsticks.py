"""What the agreement with the paper is worth: gains, orders, and what a constant would score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.paper.blocks import PaperPoint, geometric_mean
from benchmarks.paper.mlp import Mlp
from benchmarks.paper.pipelines import Stack, best_two, pairs
from benchmarks.paper.printed import Collectives
from benchmarks.paper.setting import LARGE
from benchmarks.ranking.scores import kendall
from primepar.models.sizes import MODELS

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
