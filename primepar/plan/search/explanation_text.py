"""The explanation of a plan as text: a table of its operators, and what a step takes in all."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from primepar.plan.search.explain import (
    KEPT,
    Baseline,
    ChosenSequence,
    Explanation,
    Neighbour,
    reasons,
)

HEADS = ("operator", "layers", "sequence", "compute", "communication", "moved", "all", "MiB kept")
TOTAL = "of a step"
LEFT = (0, 2)
"""Columns that are flush left: those of text."""


def words(explanation: Explanation) -> str:
    """The explanation as text."""
    compared = explanation.best is not None
    heads = (*HEADS, "more") if compared else HEADS
    decimals = 3 if explanation.seconds < 1 else 1
    rows: list[tuple[tuple[str, ...], tuple[Neighbour, ...]]] = [(heads, ())]
    rows += [(_cells(choice, decimals), choice.neighbours) for choice in explanation.choices]
    rows.append((_total(explanation, decimals), ()))
    widths = [max(map(len, column)) for column in zip(*(row for row, _ in rows), strict=True)]
    lines = [
        f"{explanation.model} on {explanation.devices} devices of {explanation.cluster}, "
        f"{explanation.dtype}, {explanation.batch} x {explanation.positions} tokens a step, "
        f"space {explanation.space}",
        *([] if explanation.stages is None else [explanation.stages]),
        "milliseconds of a layer, in column all of all layers"
        + (", and in column more above the best plan" if compared else ""),
        "",
    ]
    for cells, neighbours in rows:
        aligned = [
            cell.ljust(width) if place in LEFT else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
        lines += map(_priced, neighbours)
    return "\n".join([*lines, "", *_summary(explanation)]) + "\n"


def _cells(choice: ChosenSequence, decimals: int) -> tuple[str, ...]:
    terms = choice.terms
    times = terms["compute"] + terms["update"], terms["communication"] + terms["reduction"]
    whole = choice.layers * (choice.seconds + choice.moving)
    return (choice.operator, f"{choice.layers}", choice.sequence,
            *(f"{1e3 * seconds:,.{decimals}f}" for seconds in (*times, choice.moving, whole)),
            f"{choice.kept / 2**20:,.1f}", *_more(choice.more, decimals))  # fmt: skip


def _total(explanation: Explanation, decimals: int) -> tuple[str, ...]:
    terms = explanation.terms
    times = terms["compute"] + terms["update"], terms["communication"] + terms["reduction"]
    kept = sum(terms[term] for term in KEPT)
    mores = [choice.more for choice in explanation.choices if choice.more is not None]
    more = None if explanation.best is None else sum(mores)
    return (TOTAL, "", "",
            *(f"{1e3 * seconds:,.{decimals}f}" for seconds in
              (*times, explanation.moving, explanation.priced + explanation.hidden_sums)),
            f"{kept / 2**20:,.1f}", *_more(more, decimals))  # fmt: skip


def _more(seconds: float | None, decimals: int) -> tuple[str, ...]:
    return () if seconds is None else (f"{1e3 * seconds:+z,.{decimals}f}",)


def _summary(explanation: Explanation) -> Iterator[str]:
    yield (
        f"a step of {1e3 * explanation.seconds:,.1f} ms: "
        f"{explanation.tokens_per_second:,.0f} tokens per second, MFU "
        f"{100 * explanation.mfu:.1f}% of {explanation.peak / 1e12:,.1f} TFLOP/s a device"
    )
    if explanation.simulated or explanation.hidden_sums:
        how = "that is simulated; " if explanation.simulated else ""
        yield (
            f"{how}the cost model has {1e3 * explanation.priced:,.1f} ms, as "
            f"{1e3 * explanation.hidden_sums:,.1f} ms of sums run during backward"
        )
    each_second = explanation.tokens_per_second / explanation.devices
    days = "" if explanation.days is None else f", {explanation.days:,.1f} days for all tokens"
    yield f"a device: {each_second:,.0f} tokens per second{days}"
    hidden = {axis: seconds for axis, seconds in explanation.axes.items() if axis != "computing"}
    shown = [f"{axis} {1e3 * seconds:,.1f}" for axis, seconds in hidden.items() if seconds > 0]
    if shown:
        yield f"not hidden behind computing, ms: {', '.join(shown)}"
    terms = explanation.terms
    unit = 2**30 if explanation.memory >= 2**30 else 2**20
    parts = ", ".join(f"{term} {terms[term] / unit:,.2f}" for term in KEPT)
    holds = "holds" if explanation.counted else "holds at most"
    yield (
        f"a device {holds} {_most(explanation.held)} of {_size(explanation.limit)}"
        f"{_sent(explanation)}"
    )
    yield (
        f"the search adds up {_size(explanation.memory)}: {parts}, buffers "
        f"{terms['running'] / unit:,.2f}"
    )
    if explanation.stages is not None:
        yield f"a device waits {1e3 * explanation.waiting:,.1f} ms of the step, as a mean"
    if explanation.best is not None:
        what = "plan" if explanation.stages is None else f"split, {explanation.best.plan},"
        name = f"the best {what} of space {explanation.space}"
        yield from _compared(explanation, name, explanation.best)
    if explanation.baseline is not None:
        name = f"Megatron's fastest, {explanation.baseline.plan}"
        yield from _compared(explanation, name, explanation.baseline)
    if explanation.gap > 0:
        what = "its cost is " if explanation.simulated else ""
        gap = ceil(1e4 * explanation.gap) / 100
        yield f"{what}at most {gap:.2f}% above that of the best plan, certified"
    if explanation.only_priced is not None:
        yield f"priced, not run: {explanation.only_priced}"
    if not explanation.fits:
        yield "that is more memory than a device has"


def _compared(explanation: Explanation, name: str, baseline: Baseline) -> Iterator[str]:
    """How much another plan takes, and the terms in which this one differs most."""
    ratio = baseline.seconds / explanation.seconds
    too_large = "" if baseline.fits else ", more than a device has"
    yield (
        f"{name}: {1e3 * baseline.seconds:,.1f} ms, {ratio:.2f} times this plan's, with "
        f"{_size(baseline.memory)}{too_large}"
    )
    terms = reasons(explanation.axes, baseline.axes) if baseline.axes else []
    if terms:
        more = ", ".join(f"{axis} {1e3 * seconds:+,.1f}" for axis, seconds in terms[:3])
        yield f"  this plan takes more than that, ms: {more}"


def _sent(explanation: Explanation) -> str:
    """What a device sends; nothing where that is not counted."""
    return f" and sends {_most(explanation.sent)}" if explanation.sent else ""


def _most(amounts: tuple[int, ...]) -> str:
    return ("" if len(set(amounts)) == 1 else "up to ") + _size(max(amounts))


def _size(amount: float) -> str:
    return f"{amount / 2**30:,.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:,.2f} MiB"


def _priced(neighbour: Neighbour) -> str:
    more = f"{1e3 * neighbour.more_seconds:+.3f} ms, {neighbour.more_bytes / 2**20:+z.1f} MiB"
    alike = f", as {neighbour.alike} more" if neighbour.alike else ""
    return f"    {neighbour.sequence}: {more}{alike}"
