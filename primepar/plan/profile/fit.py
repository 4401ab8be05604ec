"""Linear regression of measured times: how long each thing takes of which so many were done.

Every time counts alike, the short ones as much as the long ones: errors are relative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Sample:
    """Median seconds of something that was measured, and how many of what it takes.

    `what` says which things were measured alike, `size` which of them this is.
    """

    what: str
    size: str
    counts: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class Fit:
    """Seconds of each thing, 0 where it was not seen to take any; and how far the times are off.

    `errors` has for every sample its predicted time over the measured one, less 1.
    """

    seconds: Mapping[str, float]
    errors: tuple[float, ...] = field(default=())

    @property
    def error(self) -> float:
        """Median of the errors, without their signs."""
        return float(np.median(np.abs(self.errors)))


def fit(samples: Sequence[Sample], known: Mapping[str, float] | None = None) -> Fit:
    """Seconds of all things counted in some samples, none below 0; those `known` are kept.

    A thing that would take less than nothing is left out, and the others are fitted again.
    """
    known = known or {}
    free = sorted({name for each in samples for name in each.counts} - known.keys())
    found = dict(known)
    while free:
        values = _solved(samples, free, known)
        least = int(np.argmin(values))
        if values[least] >= 0:
            found |= dict(zip(free, values.tolist(), strict=True))
            break
        found[free.pop(least)] = 0.0
    return Fit(found, tuple(_predicted(each, found) / each.seconds - 1 for each in samples))


def _solved(
    samples: Sequence[Sample], free: Sequence[str], known: Mapping[str, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares of the relative errors; columns are scaled alike."""
    rows = np.array([[each.counts.get(name, 0.0) for name in free] for each in samples])
    took = np.array([each.seconds for each in samples])
    rest = np.array([1 - _predicted(each, known) / each.seconds for each in samples])
    rows = rows / took[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    values, *_ = np.linalg.lstsq(rows / scale, rest, rcond=None)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = values / scale
    return found


def _predicted(sample: Sample, seconds: Mapping[str, float]) -> float:
    return sum(count * seconds.get(name, 0.0) for name, count in sample.counts.items())
