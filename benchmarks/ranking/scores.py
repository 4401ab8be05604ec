"""How well predicted times rank measured ones: Kendall's tau, regret, errors, and yardsticks.

The yardsticks know nothing of a plan, or all that can be measured: a constant in the place of every
prediction, and the measurement itself, one half of the rounds as the prediction of the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import mean, median
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95


class TauInterval(Struct, frozen=True):
    """Kendall's tau, with the bounds of its 95% interval by a bootstrap over plans."""

    tau: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.tau:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def tau_interval(predicted: Sequence[float], measured: Sequence[float]) -> TauInterval:
    """Tau of all plans, and its interval over plans drawn again from them, the same each time.

    Two plans of a resample that are the same plan are no pair. One without pairs is drawn again.
    """
    signs, random = _signs(predicted) * _signs(measured), Random(0)
    taus: list[float] = []
    while len(taus) < RESAMPLES:
        taus += _resampled(signs, random)
    taus.sort()
    cut = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    return TauInterval(kendall(predicted, measured), taus[cut], taus[-1 - cut])


def kendall(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Kendall's tau: pairs in the same order minus pairs in the opposite one, over all pairs."""
    count = len(predicted)
    return float((_signs(predicted) * _signs(measured)).sum() / (count * (count - 1)))


def _signs(values: Sequence[float]) -> NDArray[np.float64]:
    """-1, 0 or 1 for every pair of plans, by which of the two is larger."""
    line = np.array(values)
    signs: NDArray[np.float64] = np.sign(line[:, None] - line)
    return signs


def _resampled(signs: NDArray[np.float64], random: Random) -> list[float]:
    """Tau of as many plans, drawn with replacement; nothing where all are one plan."""
    count = len(signs)
    chosen = np.array(random.choices(range(count), k=count))
    pairs = count * count - int((np.bincount(chosen) ** 2).sum())
    return [float(signs[np.ix_(chosen, chosen)].sum() / pairs)] if pairs else []


def regret(chosen: int, measured: Sequence[float]) -> float:
    """By how much the chosen plan's measured time is above that of the fastest, as a share."""
    return measured[chosen] / min(measured) - 1


def least(values: Sequence[float]) -> int:
    """The index of the least value."""
    return min(range(len(values)), key=values.__getitem__)


def blind_regret(measured: Sequence[float]) -> float:
    """The expected regret of a plan chosen blindly: what a constant prediction gives."""
    return mean(measured) / min(measured) - 1


def error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The median over plans of how far a predicted time is from the measured one."""
    return median(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))


def constant_error(measured: Sequence[float]) -> float:
    """The error of the best constant, which is chosen after the measurement."""
    return min(error([value] * len(measured), measured) for value in measured)
