"""What a search chose, in words: a table of the sequences, and what their neighbours would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil

import numpy as np

from primepar.plan.cost.traffic import traffic
from primepar.plan.search.result import SearchResult

NEIGHBOURS = 3
"""Other sequences that are priced for each operator."""


@dataclass(frozen=True)
class Neighbour:
    """Another sequence of an operator, and by how much a step would be longer with it alone."""

    sequence: str
    more_seconds: float
    more_bytes: float


@dataclass(frozen=True)
class ChosenSequence:
    """The sequence of one operator, or of the same one of several layers.

    `seconds` and `moving` are of a training step of one layer: of the operator, and of what brings
    its inputs and takes their gradients back. `kept` is bytes of a device.
    """

    operator: str
    sequence: str
    seconds: float
    moving: float
    kept: float
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """A plan with its predicted time, memory and traffic, operator by operator.

    `memory` is what the search adds up; `held` the most bytes that are on every device at once, and
    `sent` the bytes that leave it.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    positions: int
    dtype: str
    space: str
    seconds: float
    memory: float
    fits: bool
    held: tuple[int, ...]
    gap: float
    """By how much the plan may be above the best at most, as a share of that."""
    sent: tuple[int, ...]
    choices: tuple[ChosenSequence, ...]


def explain(found: SearchResult, neighbours: bool = False) -> Explanation:
    """Tell what was chosen, and where asked what else was near."""
    planner = found.planner
    training = planner.training
    choices = [_choice(found, name, neighbours) for name in found.choices]
    plan, batch, positions = found.plan, training.batch, training.positions
    held = found.held
    return Explanation(
        model=planner.model.family,
        cluster=training.cluster.name,
        devices=training.wires.devices,
        batch=training.batch,
        positions=training.positions,
        dtype=training.dtype,
        space=planner.space,
        seconds=found.seconds,
        memory=found.memory,
        fits=max(held) <= training.cluster.memory,
        held=held,
        gap=found.gap,
        sent=traffic(plan, batch, positions).bytes(training.dtype),
        choices=tuple(_folded(choices)),
    )


def _choice(found: SearchResult, name: str, neighbours: bool) -> ChosenSequence:
    planner, at = found.planner, found.choices[name]
    options = planner.options(name)
    return ChosenSequence(
        operator=name,
        sequence=options.candidates[at].text,
        seconds=float(options.seconds[at]),
        moving=planner.between(name, found.choices),
        kept=float(options.kept[at]),
        neighbours=tuple(_neighbours(found, name)) if neighbours else (),
    )


def _neighbours(found: SearchResult, name: str) -> Iterator[Neighbour]:
    """The nearest other options, all other operators keeping theirs."""
    planner, at = found.planner, found.choices[name]
    options = planner.options(name)
    costs = planner.around(name, found.choices)
    for other in np.argsort(costs, kind="stable")[: NEIGHBOURS + 1].tolist():
        if other != at:
            more = float(options.kept[other] - options.kept[at])
            text = options.candidates[other].text
            yield Neighbour(text, float(costs[other] - costs[at]), more)


def _folded(choices: list[ChosenSequence]) -> Iterator[ChosenSequence]:
    """Consecutive layers with the same sequences as one, told by the first: `blocks.1-11.qkv`."""
    layers = [(key, list(own)) for key, own in groupby(choices, key=_layer)]
    for _, group in groupby(layers, key=lambda each: [(_own(c), c.sequence) for c in each[1]]):
        alike = list(group)
        first, last = alike[0], alike[-1]
        for choice in first[1]:
            name = choice.operator
            if first[0] and len(alike) > 1:
                name = f"blocks.{first[0]}-{last[0]}.{_own(choice)}"
            yield ChosenSequence(name, choice.sequence, choice.seconds, choice.moving, choice.kept,
                         choice.neighbours)  # fmt: skip


def _layer(choice: ChosenSequence) -> str:
    parts = choice.operator.split(".")
    return parts[1] if parts[0] == "blocks" else ""


def _own(choice: ChosenSequence) -> str:
    return choice.operator.split(".", 2)[2] if _layer(choice) else choice.operator


def words(told: Explanation) -> str:
    """The explanation as text."""
    lines = [
        f"{told.model} on {told.devices} devices of {told.cluster}, {told.dtype}, "
        f"{told.batch} x {told.positions} tokens a step, space {told.space}",
        "",
    ]
    heads = ("operator", "sequence", "ms", "ms moving", "MiB kept")
    rows = [heads, *(_cells(choice) for choice in told.choices)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, choice in zip(rows, [None, *told.choices], strict=True):
        texts = [cell.ljust(size) for cell, size in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(size) for cell, size in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join((*texts, *numbers)))
        lines += [] if choice is None else map(_priced, choice.neighbours)
    lines += [
        "",
        f"a step of {1e3 * told.seconds:,.1f} ms; a device holds {_most(told.held)} "
        f"({_size(told.memory)} as the search adds up) and sends {_most(told.sent)}",
    ]
    if told.gap > 0:
        lines.append(f"at most {ceil(1e4 * told.gap) / 100:.2f}% above the best plan, certified")
    if not told.fits:
        lines.append("that is more memory than a device has")
    return "\n".join(lines) + "\n"


def _most(amounts: tuple[int, ...]) -> str:
    return ("" if len(set(amounts)) == 1 else "up to ") + _size(max(amounts))


def _size(amount: float) -> str:
    return f"{amount / 2**30:,.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:,.2f} MiB"


def _priced(other: Neighbour) -> str:
    more = f"{1e3 * other.more_seconds:+.3f} ms, {other.more_bytes / 2**20:+.1f} MiB"
    return f"    {other.sequence}: {more}"


def _cells(choice: ChosenSequence) -> tuple[str, ...]:
    times = (f"{1e3 * each:,.3f}" for each in (choice.seconds, choice.moving))
    return (choice.operator, choice.sequence, *times, f"{choice.kept / 2**20:,.1f}")
