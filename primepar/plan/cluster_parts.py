"""What a cluster file has tables for: rates of products, links, and kinds of operators.

Each has a straight line, two numbers, and may have curves of measured points instead. Costs and the
simulator read both through the methods here.

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
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SMALLEST, LARGEST = 1e-30, 1e30
Positive = Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]
"""Costs multiply and divide a few numbers, and no quotient may overflow: bytes over 1e-320 bytes
per second are infinite seconds, at which a simulation never arrives."""
Seconds = Annotated[float, Meta(ge=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Points = Annotated[tuple[tuple[Positive, Positive], ...], Meta(min_length=2)]
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


BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 2}
"""Bytes of an element of each data type.

With `float8` the numbers of products alone have 8 bits; tensors are kept and sent in bfloat16.
"""
KINDS: Final = ("embedding", "norm", "attention", "activation", "add", "loss", "update", "join")
"""Kinds of operators that a cluster may have times for; `update` is AdamW's.

`join` copies blocks out of a tensor or into one: what is sent, and what has arrived.
"""
DataType = Annotated[str, Meta(pattern=f"^({'|'.join(BYTES)})$")]
Kind = Annotated[str, Meta(pattern=f"^({'|'.join(KINDS)})$")]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
"""Collectives that may have times of their own; a reduce-scatter else takes an all-gather's."""
Moved = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "message"]
"""What a level of links may have curves for."""
METHODS: Final = {"all_reduce": "all_reduce", "all_gather": "all_gather",
                  "reduce_scatter": "all_gather"}  # fmt: skip
"""Collective -> the table with its latency and bandwidth."""


class WorkTimes(NamedTuple):
    """Times of operations: at a rate after their bytes, or by a curve that includes their bytes."""

    rate: Any
    """Operations per second."""
    measured: Curve | None = None
    roofline: bool = False
    """Whether the rate was measured with the bytes that the operations pass through memory."""

    def seconds(self, operations: Any, passing: Any) -> Any:
        """Seconds of operations whose launch and bytes take `passing` seconds.

        On a line both are added, as in the paper. A measured time includes the bytes of a large
        product, so the longer of the two counts: a thin product takes the time of its bytes.
        """
        if not operations:
            return passing
        if self.measured is not None:
            return max(passing, self.measured.seconds(operations))
        if self.roofline:
            return max(passing, operations / self.rate)
        return passing + operations / self.rate


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """Operations per second in one data type: `peak` by the data sheet, `achieved` in products.

    `products` has [operations, operations per second] of measured products. `attention` has
    [tokens of a sequence, operations per second], forward and backward together.
    """

    peak: Positive
    achieved: Positive
    products: Points | None = None
    attention: Points | None = None

    def product(self, number: Number = float) -> WorkTimes:
        """Times of products."""
        measured = None if self.products is None else curve(self.products, number)
        return WorkTimes(number(self.achieved), measured)

    def attending(self, positions: int, number: Number = float) -> WorkTimes:
        """Times of attention over sequences of this many tokens."""
        if self.attention is None:
            return self.product(number)
        seconds = curve(self.attention, number).seconds(number(positions))
        return WorkTimes(number(positions) / seconds, roofline=True)


class Ring(Struct, frozen=True, forbid_unknown_fields=True):
    """Collectives on one level: seconds for each step of a ring, and bytes per second."""

    latency: Seconds
    bandwidth: Positive


class LinkTimes(NamedTuple):
    """Times of a transfer on a level: seconds before its bytes move, then bytes per second.

    `bandwidth` is what all transfers through a port share, `alone` the most that one of them gets.
    """

    start: Any
    bandwidth: Any
    alone: Any


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """One level of links, which joins groups of the level below into groups of `joins` devices.

    `bandwidth` is in one direction, per device; where it is `shared`, per group of the level below.
    A message takes `latency` plus its bytes over the bandwidth. A message that is alone on the link
    gets `stream` instead where that is given. All-reduces, and all-gathers with reduce-scatters,
    may have numbers of their own.

    `curves` has for a collective, by the size of its group, [bytes, bytes per second]: size and bus
    bandwidth as nccl-tests prints them. A group that is not listed takes the next larger one, or
    the largest. A message has a group of 2.

    Of several messages that a port sends or receives at once, each after the first takes `gap`
    seconds more: the g of LogP (Culler et al., PPoPP 1993).
    """

    joins: Count
    latency: Seconds
    bandwidth: Positive
    shared: bool
    stream: Positive | None = None
    all_reduce: Ring | None = None
    all_gather: Ring | None = None
    curves: dict[Moved, dict[Annotated[int, Meta(ge=2)], Points]] = {}
    gap: Seconds = 0.0

    @property
    def alone(self) -> float:
        """Bytes per second of one message at a time."""
        return self.bandwidth if self.stream is None else self.stream

    def line(self, collective: Collective, steps: int, number: Number = float) -> LinkTimes:
        """Times of a collective of `steps` steps by the straight line."""
        method: Ring | None = getattr(self, METHODS.get(collective, ""), None)
        if method is None:
            return LinkTimes(
                steps * number(self.latency), number(self.bandwidth), number(self.alone)
            )
        bandwidth = number(method.bandwidth)
        return LinkTimes(steps * number(method.latency), bandwidth, bandwidth)

    def collective(
        self, collective: Collective, group: int, sent: Any, steps: int, number: Number = float
    ) -> LinkTimes:
        """Times of a collective in which each of `group` devices sends `sent` bytes."""
        measured = self._curve(collective, group, number)
        if measured is None:
            return self.line(collective, steps, number)
        # Of n devices each sends (n - 1) / n of the size, in an all-reduce twice that. The bus
        # bandwidth is the bytes that each sends, over the seconds (nccl-tests, PERFORMANCE.md).
        rounds, bytes_sent = 2 if collective == "all_reduce" else 1, number(sent)
        size = bytes_sent * group / (rounds * (group - 1))
        seconds = measured.seconds(size) * rounds * (group - 1) / group
        start = max(number(0), seconds - bytes_sent / measured.best)
        # A collective takes the whole port of a device, but not that of all devices behind it.
        if not self.shared or collective == "all_to_all":
            return LinkTimes(start, measured.best, measured.best)
        return LinkTimes(start, max(number(self.bandwidth), measured.best), measured.best)

    def message(self, size: Any, number: Number = float) -> Any:
        """Seconds before a message's bytes move: what it takes beyond its bytes, or more."""
        measured = self._curve("message", 2, number)
        latency = number(self.latency)
        if measured is None:
            return latency
        return max(latency, measured.seconds(size) - size / number(self.alone))

    def messages(self, sizes: NDArray[np.float64]) -> NDArray[np.float64] | float:
        """The seconds of `message` for many sizes."""
        measured = self._curve("message", 2, float)
        if measured is None:
            return self.latency
        beyond = measured.seconds_of(sizes) - sizes / self.alone
        return beyond.clip(self.latency)

    def _curve(self, moved: Moved, group: int, number: Number) -> Curve | None:
        by_group = self.curves.get(moved)
        if by_group is None and moved == "reduce_scatter":
            by_group = self.curves.get("all_gather")
        if not by_group:
            return None
        larger = [listed for listed in by_group if listed >= group]
        return curve(by_group[min(larger) if larger else max(by_group)], number)


class Passing(Struct, frozen=True, forbid_unknown_fields=True):
    """Times of one kind of memory-bound operators.

    An operation takes `launch` seconds, plus the bytes that it reads and writes over
    `memory_bandwidth`. Attention that passes the scores of queries with keys through memory has
    `scores`, how many it passes in a second.
    """

    launch: Seconds
    memory_bandwidth: Positive
    scores: Positive | None = None
