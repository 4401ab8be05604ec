"""Linear regression of measured times on counts: the seconds of each counted thing.

Errors are relative, so that short times weigh as much as long ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sample:
    """Median seconds of one measurement, and its counts: launches, operations, bytes, messages.

    `what` names the series of measurements, `size` the one of them.
    """

    what: str
    size: str
    counts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Seconds of each counted thing, 0 where its fitted time would be negative; and the errors.

    `errors` has for every sample its predicted time over the measured one, minus 1.
    """

    seconds: Mapping[str, float]
    errors: tuple[float, ...] = field(default=())

    @property
    def error(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))


def fit(samples: Sequence[Sample], known: Mapping[str, float] | None = None) -> Fit:
    """Seconds of everything that the samples count, none below 0; `known` ones stay as given.

    While a fitted time is negative, the most negative one is set to 0 and the others are fitted
    again.
    """
    known = known or {}
    free = sorted({name for sample in samples for name in sample.counts} - known.keys())
    seconds = dict(known)
    while free:
        values = _solved(samples, free, known)
        least = int(np.argmin(values))
        if values[least] >= 0:
            seconds |= dict(zip(free, values.tolist(), strict=True))
            break
        seconds[free.pop(least)] = 0.0
    return Fit(
        seconds, tuple(_predicted(sample, seconds) / sample.seconds - 1 for sample in samples)
    )


def _solved(
    samples: Sequence[Sample], free: Sequence[str], known: Mapping[str, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares of the relative errors; columns are scaled to equal maxima."""
    rows = np.array([[sample.counts.get(name, 0.0) for name in free] for sample in samples])
    measured = np.array([sample.seconds for sample in samples])
    rest = np.array([1 - _predicted(sample, known) / sample.seconds for sample in samples])
    rows = rows / measured[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    values, *_ = np.linalg.lstsq(rows / scale, rest, rcond=None)
    solution: np.ndarray[tuple[int], np.dtype[np.float64]] = values / scale
    return solution


def _predicted(sample: Sample, seconds: Mapping[str, float]) -> float:
    return sum(count * seconds.get(name, 0.0) for name, count in sample.counts.items())
