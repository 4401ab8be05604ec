"""What a chosen plan costs, operator by operator, next to other sequences and to Megatron."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Final

import numpy as np

from primepar.models.config import flops_per_token
from primepar.plan.cost.linear import Cost
from primepar.plan.search.ranked import ComparedPlan, baselines
from primepar.plan.search.result import SearchResult

AXES: Final = ("computing", "tensor", "context", "experts", "data", "pipeline")
_OWN: Final = {"attention": "context", "experts": "experts"}
"""Operators whose communication is that of an axis other than tensor."""
LEAST: Final = 1e-4
"""Share of a step below which a difference is no reason."""
NEIGHBOURS = 3
"""Number of prices of alternatives that are listed for each operator."""
KEPT = ("parameters", "gradients", "states", "stash")
"""Terms of `Cost` that a device keeps through a step."""


@dataclass(frozen=True)
class Neighbour:
    """Another sequence of one operator, and the additional seconds and bytes with it alone.

    `alike` more sequences have the same price.
    """

    sequence: str
    more_seconds: float
    more_bytes: float
    alike: int = 0


@dataclass(frozen=True)
class ChosenSequence:
    """The sequence of one operator, or of the same one of several `layers`.

    Amounts are of a training step of one layer. `terms` are those of `Cost`: seconds and bytes of a
    device. `seconds` is their sum, `moving` that of the redistribution of the operator's inputs and
    of their gradients, and `kept` the bytes that a device keeps.
    """

    operator: str
    layers: int
    sequence: str
    terms: dict[str, float]
    seconds: float
    moving: float
    kept: float
    neighbours: tuple[Neighbour, ...] = ()
    more: float | None = None
    """Seconds of all these layers above those in the best plan; None where nothing is compared."""


@dataclass(frozen=True)
class Baseline:
    """Another plan on the same devices; `memory` is as the search adds it up.

    Its seconds are simulated if those of the plan are.
    """

    plan: str
    seconds: float
    memory: float
    fits: bool
    axes: dict[str, float] = field(default_factory=dict)
    """Its seconds by axis, as in `Explanation`; empty where they are not known."""


@dataclass(frozen=True)
class Explanation:
    """A plan with its predicted time, memory and traffic, operator by operator.

    `terms` are sums over all operators; `running` is the largest of theirs. `memory` is the bytes
    that the search adds up: what is kept, and `running`. `held` is the peak bytes of every
    device, and `sent` the bytes that it sends. `mfu` is the share of the devices' peak that the
    model's own operations take.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    positions: int
    dtype: str
    space: str
    seconds: float
    """Of a step: simulated, or else priced."""
    priced: float
    """By the cost model, on which the search is based."""
    simulated: bool
    hidden_sums: float
    """Seconds of sums of gradients that run during backward, by the cost model."""
    tokens_per_second: float
    mfu: float
    peak: float
    """Operations per second of one device, by its data sheet."""
    terms: dict[str, float]
    moving: float
    memory: float
    limit: float
    fits: bool
    held: tuple[int, ...]
    counted: bool
    """Whether `held` is counted in the step's program; if not, it is `memory`, a bound."""
    gap: float
    """Upper bound of the distance from the best plan, as a share of that."""
    sent: tuple[int, ...]
    baseline: Baseline | None
    """Megatron's fastest plan."""
    best: Baseline | None
    """The best plan of the space, where a given plan is compared with it."""
    stages: str | None
    """Stages, micro-batches and options of a plan that has them. Times are means over stages."""
    waiting: float
    """Seconds in which a device of a pipeline waits, as a mean over all; 0 without one."""
    choices: tuple[ChosenSequence, ...] = field(repr=False)
    axes: dict[str, float]
    """Seconds by axis: computing, and communication that is not hidden."""
    only_priced: str | None
    """What of the model no training step here has."""
    days: float | None = None
    """Days of training on a number of tokens, where one is given."""


def explain(
    plan: ComparedPlan | SearchResult,
    others: Several[ComparedPlan] = (),
    *,
    neighbours: bool = False,
    best: ComparedPlan | None = None,
) -> Explanation:
    """Explain a plan, with `neighbours` also the cheapest alternatives of every operator.

    Of the `others` Megatron's fastest is its baseline. With the `best` plan of a search, also what
    each chosen operator takes more than in that.
    """
    plan = plan if isinstance(plan, ComparedPlan) else ComparedPlan("", plan)
    result = plan.result
    planner, training = result.planner, result.planner.training
    cluster, devices = training.cluster, training.links.devices
    chosen = [_choice(result, name, neighbours) for name in result.choices]
    if best is not None:
        there = {name: _all(_choice(best.result, name, False)) for name in result.choices}
        chosen = [replace(choice, more=_all(choice) - there[choice.operator]) for choice in chosen]
    choices = tuple(folded(chosen))
    held, seconds = result.held, plan.seconds
    hidden = max(0.0, sum(map(_all, choices)) - result.seconds)
    speed, peak = training.rows / seconds, cluster.rate(training.dtype).peak
    terms = {term: sum(choice.layers * choice.terms[term] for choice in choices)
             for term in Cost._fields}  # fmt: skip
    return Explanation(
        model=planner.model.family,
        cluster=cluster.name,
        devices=devices,
        batch=training.batch,
        positions=training.positions,
        dtype=training.dtype,
        space=planner.space,
        seconds=seconds,
        priced=result.seconds,
        simulated=plan.simulated,
        hidden_sums=hidden,
        tokens_per_second=speed,
        mfu=speed * flops_per_token(planner.model) / (devices * peak),
        peak=peak,
        terms=terms | {"running": max(choice.terms["running"] for choice in choices)},
        moving=sum(choice.layers * choice.moving for choice in choices),
        memory=result.memory,
        limit=cluster.memory,
        fits=max(held) <= cluster.memory,
        held=held,
        counted=result.account is not None,
        gap=result.gap,
        sent=result.sent,
        baseline=_megatron(plan, others),
        best=None if best is None else _best(best),
        stages=None,
        waiting=0.0,
        choices=choices,
        axes=_not_hidden(choices, result),
        only_priced=planner.model.priced.what if planner.model.priced else None,
    )


def _megatron(plan: ComparedPlan, others: Several[ComparedPlan]) -> Baseline | None:
    """Megatron's fastest plan; those within a device's memory come first."""
    named = [other for other in (plan, *others) if other.name]
    named = named or [*baselines(plan.result.planner)]
    alike = [other for other in named if other.simulated == plan.simulated] or named
    fastest = min(alike, key=lambda other: (not other.fits, other.seconds), default=None)
    return None if fastest is None else _compared(fastest.name, fastest)


def _best(best: ComparedPlan) -> Baseline:
    """The best plan. It is within the memory of a device if that holds no more at once."""
    baseline = _compared("the best", best)
    memory = best.result.planner.training.cluster.memory
    return replace(baseline, fits=baseline.fits or max(best.result.held) <= memory)


def _compared(name: str, plan: ComparedPlan) -> Baseline:
    chosen = [_choice(plan.result, operator, False) for operator in plan.result.choices]
    axes = _not_hidden(chosen, plan.result)
    return Baseline(name, plan.seconds, plan.result.memory, plan.fits, axes)


def _not_hidden(choices: Several[ChosenSequence], result: SearchResult) -> dict[str, float]:
    """Seconds by axis, without those of sums of gradients that run during backward."""
    axes = seconds_by_axis(choices)
    hidden = max(0.0, sum(map(_all, choices)) - result.seconds)
    return axes | {"data": max(0.0, axes["data"] - hidden)}


def _all(choice: ChosenSequence) -> float:
    return choice.layers * (choice.seconds + choice.moving)


def _choice(result: SearchResult, name: str, neighbours: bool) -> ChosenSequence:
    planner, number = result.planner, result.choices[name]
    options = planner.options(name)
    return ChosenSequence(
        operator=name,
        layers=1,
        sequence=options.candidates[number].text,
        terms={term: float(amounts[number]) for term, amounts in options.terms.items()},
        seconds=float(options.seconds[number]),
        moving=sum(planner.redistribution_seconds(name, result.choices)),
        kept=float(options.kept[number]),
        neighbours=tuple(_neighbours(result, name)) if neighbours else (),
    )


def _neighbours(result: SearchResult, name: str) -> Iterator[Neighbour]:
    """The cheapest alternatives of an operator, with all other choices fixed.

    Of several at one price, to a nanosecond and a byte, the first is named; those at the price of
    the chosen one are left out.
    """
    planner, number = result.planner.all_counted(), result.choices[name]
    options = planner.options(name)
    costs = planner.costs_around(name, result.choices)
    seconds, kept = costs - costs[number], options.kept - options.kept[number]
    at_price: dict[tuple[float, float], list[int]] = {}
    for place in np.argsort(seconds, kind="stable").tolist():
        price = round(float(seconds[place]), 9), round(float(kept[place]))
        at_price.setdefault(price, []).append(place)
    at_price.pop((0.0, 0), None)
    for first, *rest in islice(at_price.values(), NEIGHBOURS):
        text = options.candidates[first].text
        yield Neighbour(text, float(seconds[first]), float(kept[first]), len(rest))


def folded(choices: list[ChosenSequence]) -> Iterator[ChosenSequence]:
    """Consecutive layers with equal sequences as one."""
    by_layer = [(key, list(of_layer)) for key, of_layer in groupby(choices, key=_layer)]
    for _, group in groupby(
        by_layer, key=lambda layer: [(_name_in_layer(c), c.sequence) for c in layer[1]]
    ):
        equal = list(group)
        first, last = equal[0], equal[-1]
        for choice in first[1]:
            name = choice.operator
            if first[0] and len(equal) > 1:
                name = f"blocks.{first[0]}-{last[0]}.{_name_in_layer(choice)}"
            same = [c for _, of_layer in equal for c in of_layer
                    if _name_in_layer(c) == _name_in_layer(choice)]  # fmt: skip
            yield _several(name, same)


def _several(name: str, same: list[ChosenSequence]) -> ChosenSequence:
    """One operator of several layers. Redistribution is their mean, what is more their sum."""
    moving = sum(choice.moving for choice in same) / len(same)
    more = None if same[0].more is None else sum(choice.more or 0.0 for choice in same)
    return replace(same[0], operator=name, layers=len(same), moving=moving, more=more)


def _layer(choice: ChosenSequence) -> str:
    parts = choice.operator.split(".")
    return parts[1] if parts[0] == "blocks" else ""


def _name_in_layer(choice: ChosenSequence) -> str:
    return choice.operator.split(".", 2)[2] if _layer(choice) else choice.operator


def seconds_by_axis(choices: Iterable[ChosenSequence], waiting: float = 0.0) -> dict[str, float]:
    """Seconds of all operators of a plan by axis; they add up to the step.

    Tensor parallelism is in the operators and between them. Context parallelism is what attention
    gathers, expert parallelism what experts exchange, data parallelism the sums of gradients.
    Example: of `M2,megatron-sp` the gathers and scatters of fc1 are on the axis tensor, and the sum
    of its weight's gradient over the two copies on the axis data.
    """
    seconds = dict.fromkeys(AXES, 0.0)
    for choice in choices:
        terms, axis = choice.terms, _OWN.get(choice.operator.rpartition(".")[2], "tensor")
        seconds["computing"] += choice.layers * (terms["compute"] + terms["update"])
        seconds[axis] += choice.layers * terms["communication"]
        seconds["tensor"] += choice.layers * choice.moving
        seconds["data"] += choice.layers * terms["reduction"]
    return seconds | {"pipeline": waiting}


def reasons(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Axes in which two plans differ, with how many seconds more ours takes, the largest first."""
    least = LEAST * sum(ours.values())
    more = [(axis, ours[axis] - theirs[axis]) for axis in AXES]
    return sorted((term for term in more if abs(term[1]) > least), key=lambda term: -abs(term[1]))
