"""What the agreement with the paper is worth: a constant's score, mean gains, best against best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.paper.blocks import PaperPoint, geometric_mean
from benchmarks.paper.pipelines import Stack, pairs
from benchmarks.paper.setting import LARGE
from primepar.models.sizes import MODELS

WITHIN = 0.25
"""Ratios to the paper's that count as near, above and below 1."""


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
