"""How sure is a ratio, and how well do predictions rank what is measured? Scores and intervals.

The yardsticks of a prediction know nothing of a plan, or all that can be measured: a constant in
the place of every prediction, and one half of the rounds as the prediction of the other half.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean, median
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

SAMPLES: Final = 2000
"""Of a bootstrap; its intervals have 95%."""


class Score(Struct, frozen=True):
    """A number, and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def __format__(self, form: str) -> str:
        value, low, high = (format(one, form) for one in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})" if form else str(self)

    @classmethod
    def exact(cls, value: float) -> Score:
        """A number that does not vary."""
        return cls(value, value, value)

    @classmethod
    def of(cls, value: float, drawn: Sequence[float]) -> Score:
        """A number, and the middle 95% of those of drawn samples."""
        ordered = sorted(drawn)
        cut = round(0.025 * len(ordered))
        return cls(value, ordered[cut], ordered[-1 - cut])


def above_floor(ours: Sequence[float], theirs: Sequence[float], floor: Sequence[float]) -> Score:
    """Median of ours above the floor over that of theirs; entry i of each is from round i.

    Differences are taken within a round, so that load which slows a whole round cancels.
    """
    pairs = [
        (mine - least, reference - least)
        for mine, reference, least in zip(ours, theirs, floor, strict=True)
    ]

    def ratio(some: Sequence[tuple[float, float]]) -> float:
        above, reference = (median(values) for values in zip(*some, strict=True))
        return above / reference if reference > 0 else float("inf")

    draw = random.Random(0)
    return Score.of(
        ratio(pairs), [ratio(draw.choices(pairs, k=len(pairs))) for _ in range(SAMPLES)]
    )


def step_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Score:
    """Median of ours over that of theirs; entry i of each is from round i."""
    return above_floor(ours, theirs, [0.0] * len(ours))


def tau_interval(predicted: Sequence[float], measured: Sequence[float]) -> Score:
    """Kendall's tau of all plans, and its interval over plans drawn again from them.

    Two plans of a sample that are the same plan are no pair. One without pairs is drawn again.
    """
    signs, draw, taus = _signs(predicted) * _signs(measured), random.Random(0), list[float]()
    count = len(signs)
    while len(taus) < SAMPLES:
        chosen = np.array(draw.choices(range(count), k=count))
        pairs = count * count - int((np.bincount(chosen) ** 2).sum())
        if pairs:
            taus.append(float(signs[np.ix_(chosen, chosen)].sum() / pairs))
    return Score.of(kendall(predicted, measured), taus)


def kendall(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Kendall's tau: pairs in the same order minus pairs in the opposite one, over all pairs."""
    count = len(predicted)
    return float((_signs(predicted) * _signs(measured)).sum() / (count * (count - 1)))


def _signs(values: Sequence[float]) -> NDArray[np.float64]:
    """-1, 0 or 1 for every pair of plans, by which of the two is larger."""
    line = np.array(values)
    signs: NDArray[np.float64] = np.sign(line[:, None] - line)
    return signs


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
