"""Several batches, or numbers of devices, in one run of `primepar plan`: a table and a picture.

Each pair is a question of its own, and its best plan is a row. A row is on the frontier of time and
memory if no other has more tokens per second of a device in no more memory, or as many in less. As
a picture, rows are points: memory of a device to the right, its tokens per second upward. Ctrl-C
ends the questions, and what has been answered is printed, the last one with its best so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from primepar.api.target import SEQUENCES
from primepar.commands.amounts import aligned
from primepar.commands.plan_objective import SECONDS_OF_A_DAY, Printed, Question, Tick
from primepar.errors import ConfigError, PlanError
from primepar.files import write_text

GIB = 2**30
WIDTH, HEIGHT, MARGIN = 560.0, 320.0, 56.0
COLUMNS = ("devices", "batch", "p x d x m", "micro-batches", "shards", "again", "step, ms",
           "waits, ms", "tokens/s a device", "MFU", "GiB", "days", "")  # fmt: skip


def counts(name: str, text: str | None) -> tuple[int | None, ...]:
    """The numbers of `8` or `8,16,32`, or none. Raises `ConfigError`."""
    if text is None:
        return (None,)
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() and int(number) for number in numbers):
        raise ConfigError(
            f"{name}: expected a number from 1, or several as 8,16,32, got {text!r}: write {name} 8"
        )
    return tuple(map(int, numbers))


@dataclass(frozen=True)
class Point:
    """The best plan for a batch on some devices, or why there is none."""

    devices: int
    batch: int
    plan: str = ""
    microbatches: int = 1
    shard: str = "none"
    recompute: str = "none"
    seconds: float = 0.0
    waiting: float = 0.0
    tokens_per_second: float = 0.0
    """Of a device."""
    mfu: float = 0.0
    memory: float = 0.0
    """Bytes of the fullest device."""
    days: float | None = None
    refusal: str | None = None
    stopped: bool = False
    """Whether Ctrl-C ended its search."""

    @classmethod
    def of(cls, question: Question, tick: Tick) -> Point:
        """The answer to a question of one batch on one number of devices."""
        from primepar.plan.search.explain import explain

        devices, batch = question.asked_devices, question.batch or SEQUENCES
        try:
            known = explain(question.rows(tick))
        except PlanError as error:
            return cls(devices, batch, refusal=str(error))
        best, speed, days = known.rows[0], known.tokens_per_second, None
        if question.tokens is not None:
            days = question.tokens / speed / SECONDS_OF_A_DAY
        return cls(
            devices, batch, str(best.split), best.microbatches,
            best.shard, best.recompute, known.seconds, known.waiting, speed / known.devices,
            known.mfu, max(known.held), days, stopped=known.stopped,
        )  # fmt: skip

    def below(self, other: Point) -> bool:
        """Whether another one is as good in both, and better in one."""
        faster = other.tokens_per_second - self.tokens_per_second
        lighter = self.memory - other.memory
        return min(faster, lighter) >= 0 and max(faster, lighter) > 0


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other is better than."""
    planned = [point for point in points if point.refusal is None]
    return [one for one in planned if not any(one.below(other) for other in planned)]


def answers(
    question: Question, batches: Sequence[int | None], devices: Sequence[int | None], tick: Tick
) -> Printed:
    """All answers as text and data; with an output, the picture of them is written there."""
    output, points, pairs = question.output, list[Point](), [*product(devices, batches)]
    if output is not None and output.suffix != ".svg":
        raise ConfigError(
            f"--output: expected a picture of several batches or devices, got {output}: write "
            f"{output.with_suffix('.svg')}, or ask for one of them"
        )
    try:
        for count, batch in pairs:
            one = replace(question, batch=batch, devices=count, output=None)
            points.append(Point.of(one, tick))
            if points[-1].stopped:
                break
    except KeyboardInterrupt:
        if not points:
            raise
    best = frontier(points)
    if output is not None:
        write_text(output, picture(points, best), ConfigError)
    is_whole = len(points) == len(pairs) and not points[-1].stopped
    rest = [] if is_whole else [f"stopped after {len(points)} of {len(pairs)}"]
    lines = [*aligned([COLUMNS, *(_cells(point, point in best) for point in points)], left=(12,)),
             "", "* no other has more tokens a second of a device in no more memory", *rest,
             *(f"{point.devices} devices, batch {point.batch}: {point.refusal}"
               for point in points if point.refusal)]  # fmt: skip
    data = [asdict(point) | {"frontier": point in best} for point in points]
    return Printed(data, "\n".join(lines) + "\n", 0 if best else 2)


def _cells(point: Point, is_best: bool) -> tuple[str, ...]:
    where = f"{point.devices:,}", f"{point.batch:,}"
    if point.refusal is not None:
        return (*where, *("-" for _ in COLUMNS[2:-1]), "no plan")
    return (
        *where, point.plan, f"{point.microbatches}", point.shard, point.recompute,
        f"{1e3 * point.seconds:,.1f}", f"{1e3 * point.waiting:,.1f}",
        f"{point.tokens_per_second:,.0f}", f"{point.mfu:.1%}", f"{point.memory / GIB:.2f}",
        "" if point.days is None else f"{point.days:,.1f}", "*" * is_best,
    )  # fmt: skip


def picture(points: Sequence[Point], best: Sequence[Point]) -> str:
    """Memory of a device to the right, its tokens per second upward; the frontier is filled."""
    from primepar.pictures import svg

    planned = [point for point in points if point.refusal is None]
    most = max((point.memory for point in planned), default=1.0)
    fastest = max((point.tokens_per_second for point in planned), default=1.0)

    def drawn() -> Iterator[str]:
        left, low = MARGIN, HEIGHT - MARGIN
        yield svg.element("path", d=f"M{left} 16V{low}H{WIDTH - 16}", fill="none",
                          stroke=svg.GREY)  # fmt: skip
        yield svg.text(f"GiB a device, to {most / GIB:.1f}", WIDTH - 180, HEIGHT - 16)
        yield svg.text(f"tokens/s a device, to {fastest:,.0f}", 8, 12)
        for point in planned:
            x = left + (WIDTH - 2 * left) * point.memory / most
            y = low - (low - 32) * point.tokens_per_second / fastest
            fill = svg.GREY if point in best else "none"
            yield svg.element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, fill=fill,
                              stroke=svg.GREY)  # fmt: skip
            yield svg.text(f"{point.batch} on {point.devices}", round(x + 7, 1), round(y + 4, 1))

    label = f"{len(planned)} plans by memory and speed of a device"
    return svg.picture(WIDTH, HEIGHT, drawn(), label)
