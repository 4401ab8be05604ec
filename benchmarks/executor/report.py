"""A run as text: a table for each problem, and the targets next to what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.executor.results import BenchmarkRun, ContenderResult, ProblemResult
from benchmarks.executor.score import Score
from benchmarks.executor.targets import judged

HEADER = (
    "contender",
    "CPU ms: min",
    "median",
    "above floor / DTensor",
    "wall ms: min",
    "median",
    "/ DTensor",
    "new KiB",
    "/ DTensor-SP",
    "sent KiB",
    "messages",
    "collectives",
    "waits",
)


def interval(score: Score) -> str:
    """A ratio with its interval."""
    return f"{score.ratio:.2f} [{score.low:.2f}, {score.high:.2f}]"


def cells(result: ProblemResult, entry: ContenderResult) -> list[str]:
    """The row of a contender."""
    facts = entry.facts
    messages, waits = (str(facts.messages), str(facts.waits)) if facts else ("", "")
    return [
        entry.name,
        f"{1e3 * min(entry.cpu):.2f}",
        f"{1e3 * median(entry.cpu):.2f}",
        interval(result.cpu(entry.name)),
        f"{1e3 * min(entry.wall):.2f}",
        f"{1e3 * median(entry.wall):.2f}",
        interval(result.wall(entry.name)),
        f"{entry.peak / 1024:,.0f}",
        f"{result.memory(entry.name).ratio:.2f}",
        f"{entry.sent / 1024:,.0f}",
        messages,
        str(facts.collectives if facts else entry.collectives),
        waits,
    ]


def target_rows(run: BenchmarkRun) -> list[list[str]]:
    """The targets, with `met` or `missed`."""
    return [
        [
            target.problem,
            target.metric,
            target.wanted,
            f"<= {target.limit:.2f}",
            target.plan,
            interval(target.score),
            "met" if target.met else "missed",
        ]
        for target in judged(run)
    ]


TARGET_HEADER = ("problem", "metric", "wanted of", "limit", "plan", "measured", "")


def text(run: BenchmarkRun) -> str:
    """The whole report."""
    parts = [headline(run)]
    for result in run.problems:
        rows = [cells(result, entry) for entry in result.contenders]
        lines = [f"{result.problem}; floor: {result.floor.name}", *aligned([[*HEADER], *rows])]
        lines += [f"left out {name}: {why}" for name, why in result.left_out.items()]
        parts.append("\n".join(lines))
    rows = target_rows(run)
    if rows:
        parts.append("\n".join(["targets", *aligned([[*TARGET_HEADER], *rows])]))
    return "\n\n".join(parts)


def headline(run: BenchmarkRun) -> str:
    """Where, when and under which load."""
    load = run.load
    versions = ", ".join(f"{name} {version}" for name, version in load.versions.items())
    policy = ", all ranks under SCHED_BATCH" if run.batch else ""
    return (
        f"{load.date}, {load.machine}, {versions}, gloo, float32, {run.rounds} rounds{policy}\n"
        f"machine: {load}, load average {load.load_before:.1f} at the start"
    )


def aligned(rows: list[list[str]]) -> Iterator[str]:
    """Columns in equal width, the first one at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
