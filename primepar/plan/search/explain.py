"""The result of a search as text: a table of its sequences, and the cost of alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil

import numpy as np

from primepar.plan.cluster import BYTES
from primepar.plan.cost.traffic import traffic
from primepar.plan.search.result import SearchResult

NEIGHBOURS = 3
"""Number of alternatives that are priced for each operator."""


@dataclass(frozen=True)
class Neighbour:
    """Another sequence of one operator, and the additional seconds and bytes with it alone."""

    sequence: str
    more_seconds: float
    more_bytes: float


@dataclass(frozen=True)
class ChosenSequence:
    """The sequence of one operator, or of the same one of several layers.

    `seconds` and `moving` are of a training step of one layer: of the operator, and of the
    redistribution of its inputs and of their gradients. `kept` is bytes of a device.
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

    `memory` is the bytes that the search adds up. `held` is the peak bytes of every device, and
    `sent` the bytes that it sends.
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
    """Upper bound of the distance from the best plan, as a share of that."""
    sent: tuple[int, ...]
    choices: tuple[ChosenSequence, ...]


def explain(result: SearchResult, neighbours: bool = False) -> Explanation:
    """Explain a result, with `neighbours` also the cheapest alternatives of every operator."""
    planner = result.planner
    training = planner.training
    choices = [_choice(result, name, neighbours) for name in result.choices]
    plan, batch, positions = result.plan, training.batch, training.positions
    held = result.held
    short = BYTES[training.dtype] < BYTES["float32"]
    return Explanation(
        model=planner.model.family,
        cluster=training.cluster.name,
        devices=training.links.devices,
        batch=training.batch,
        positions=training.positions,
        dtype=training.dtype,
        space=planner.space,
        seconds=result.seconds,
        memory=result.memory,
        fits=max(held) <= training.cluster.memory,
        held=held,
        gap=result.gap,
        sent=traffic(plan, batch, positions, masters=short).bytes(training.dtype),
        choices=tuple(_folded(choices)),
    )


def _choice(result: SearchResult, name: str, neighbours: bool) -> ChosenSequence:
    planner, number = result.planner, result.choices[name]
    options = planner.options(name)
    return ChosenSequence(
        operator=name,
        sequence=options.candidates[number].text,
        seconds=float(options.seconds[number]),
        moving=planner.redistribution_seconds(name, result.choices),
        kept=float(options.kept[number]),
        neighbours=tuple(_neighbours(result, name)) if neighbours else (),
    )


def _neighbours(result: SearchResult, name: str) -> Iterator[Neighbour]:
    """The cheapest alternatives of an operator, with all other choices fixed."""
    planner, number = result.planner, result.choices[name]
    options = planner.options(name)
    costs = planner.costs_around(name, result.choices)
    for neighbour in np.argsort(costs, kind="stable")[: NEIGHBOURS + 1].tolist():
        if neighbour != number:
            more_bytes = float(options.kept[neighbour] - options.kept[number])
            text = options.candidates[neighbour].text
            yield Neighbour(text, float(costs[neighbour] - costs[number]), more_bytes)


def _folded(choices: list[ChosenSequence]) -> Iterator[ChosenSequence]:
    """Consecutive layers with equal sequences as one, with the numbers of the first of them."""
    layers = [(key, list(of_layer)) for key, of_layer in groupby(choices, key=_layer)]
    for _, group in groupby(
        layers, key=lambda layer: [(_name_in_layer(c), c.sequence) for c in layer[1]]
    ):
        equal = list(group)
        first, last = equal[0], equal[-1]
        for choice in first[1]:
            name = choice.operator
            if first[0] and len(equal) > 1:
                name = f"blocks.{first[0]}-{last[0]}.{_name_in_layer(choice)}"
            yield ChosenSequence(name, choice.sequence, choice.seconds, choice.moving, choice.kept,
                         choice.neighbours)  # fmt: skip


def _layer(choice: ChosenSequence) -> str:
    parts = choice.operator.split(".")
    return parts[1] if parts[0] == "blocks" else ""


def _name_in_layer(choice: ChosenSequence) -> str:
    return choice.operator.split(".", 2)[2] if _layer(choice) else choice.operator


def words(explanation: Explanation) -> str:
    """The explanation as text."""
    lines = [
        f"{explanation.model} on {explanation.devices} devices of {explanation.cluster}, "
        f"{explanation.dtype}, {explanation.batch} x {explanation.positions} tokens a step, "
        f"space {explanation.space}",
        "",
    ]
    heads = ("operator", "sequence", "ms", "ms moving", "MiB kept")
    rows = [heads, *(_cells(choice) for choice in explanation.choices)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, choice in zip(rows, [None, *explanation.choices], strict=True):
        texts = [cell.ljust(size) for cell, size in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(size) for cell, size in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join((*texts, *numbers)))
        lines += [] if choice is None else map(_priced, choice.neighbours)
    lines += [
        "",
        f"a step of {1e3 * explanation.seconds:,.1f} ms; a device holds {_most(explanation.held)} "
        f"({_size(explanation.memory)} as the search adds up) and sends {_most(explanation.sent)}",
    ]
    if explanation.gap > 0:
        lines.append(
            f"at most {ceil(1e4 * explanation.gap) / 100:.2f}% above the best plan, certified"
        )
    if not explanation.fits:
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
    times = (f"{1e3 * seconds:,.3f}" for seconds in (choice.seconds, choice.moving))
    return (choice.operator, choice.sequence, *times, f"{choice.kept / 2**20:,.1f}")
