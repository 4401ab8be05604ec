"""Measured curves: seconds by size, from points of sizes and rates.

A curve is a list of points [size, rate], for example operations and operations per second. A point
takes size / rate seconds. Between two points the seconds are interpolated linearly. Anything below
the first point takes the seconds of that point, and what is above the last point has its rate. So
seconds never fall where the size grows. Example: by [[1e6, 1e11], [4e6, 2e11]] a size of 1e6 takes
10 us, 4e6 takes 20 us, 2.5e6 takes 15 us, 1e5 takes 10 us, and 8e6 takes 40 us.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Points = tuple[tuple[float, float], ...]
"""Sizes and rates: what is done in a second of that size."""
Number = Callable[[Any], Any]
"""Converts a float to the numbers of a run: `float`, or an exact fraction."""


@dataclass(frozen=True)
class Curve:
    """Seconds by size; both lists grow, or the seconds stay the same."""

    sizes: tuple[Any, ...]
    times: tuple[Any, ...]

    def seconds(self, size: Any) -> Any:
        """Seconds of one size, in the numbers of the curve."""
        after = bisect_right(self.sizes, size)
        if after == 0:
            return self.times[0]
        if after == len(self.sizes):
            return size * self.times[-1] / self.sizes[-1]
        low, high = self.sizes[after - 1], self.sizes[after]
        part = (size - low) / (high - low)
        return self.times[after - 1] + part * (self.times[after] - self.times[after - 1])

    def seconds_of(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of many sizes, by the same rule."""
        import numpy as np

        between = np.interp(sizes, self.sizes, self.times)
        beyond = sizes * (self.times[-1] / self.sizes[-1])
        seconds: NDArray[np.float64] = np.where(sizes > self.sizes[-1], beyond, between)
        return seconds

    @cached_property
    def best(self) -> Any:
        """The largest rate of all points."""
        return max(size / time for size, time in zip(self.sizes, self.times, strict=True))


@cache
def curve(points: Points, number: Number = float) -> Curve:
    """The curve through points, in the numbers that `number` makes."""
    sizes = tuple(number(size) for size, _ in points)
    times = tuple(number(size) / number(rate) for size, rate in points)
    return Curve(sizes, times)
