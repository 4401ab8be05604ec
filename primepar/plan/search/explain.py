"""What a plan costs, operator by operator, next to other sequences, to Megatron and to the best.

As text it is a table of the operators, and what a step takes in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, islice
from math import ceil, prod
from typing import Final

import numpy as np

from primepar.errors import PlanError
from primepar.models.config import flops_per_token
from primepar.plan.cluster import Cluster
from primepar.plan.cost.linear import Cost
from primepar.plan.cost.sweeps import moving
from primepar.plan.pipeline_layout import layer_of, layer_operator
from primepar.plan.plan import Plan, recomputed_words
from primepar.plan.search.planner import Planner
from primepar.plan.search.ranked import place_of, ranked
from primepar.plan.search.row import PlanRow, Split, name_in_model
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.search.splits import Splits
from primepar.plan.search.stage_cost import EVERY_CHOICE, repeated, seconds_for_parameters
from primepar.plan.simulator.account import MOST_COUNTED
from primepar.schedule.ledger import sent_blocks
from primepar.schedule.lower_bound import starts_replicated, training_step
from primepar.schedule.lowering import lower
from primepar.schedule.operators import tensor_dims
from primepar.schedule.sequence import Element, Sequence

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
    starts_replicated: tuple[str, ...] = ()
    """Operands of a linear operator of which there is more than one copy at the start."""
    over_bound: float | None = None
    """What a linear operator sends over what no schedule of its step sends less than.

    None where an operand starts replicated (`lower_bound`), and on more than `MOST_COUNTED`
    devices.
    """
    neighbours: tuple[Neighbour, ...] = ()
    more: float | None = None
    """Seconds of all these layers above those in the best plan; None where nothing is compared."""


@dataclass(frozen=True)
class TableRow:
    """One plan of an answer: `name` is that of a preset, or else stages x replicas x devices.

    Bytes are those of the fullest device, with the stashes of all micro-batches in flight. `bubble`
    is idle time over work. The seconds are simulated, or else the price.
    """

    name: str
    stages: int
    replicas: int
    parts: int
    microbatches: int
    microbatch: int
    chunks: int
    shard: str
    recompute: str
    seconds: float
    simulated: bool
    bubble: float
    parameters: float
    gradients: float
    states: float
    stash: float
    running: float
    memory: float
    fits: bool
    gap: float | None
    """As in `PlanRow`: None where nothing is certified."""
    only_priced: str | None
    """What of the options a training step does not have."""
    axes: dict[str, float] = field(default_factory=dict)
    """Its seconds by axis, as in `Explanation`, where it is compared with a plan."""

    @property
    def split(self) -> Split:
        """Its stages, replicas and devices of a replica."""
        return Split(self.stages, self.replicas, self.parts)

    @classmethod
    def of(cls, row: PlanRow) -> TableRow:
        """The row as data."""
        options = row.options
        return cls(
            row.name or str(row.split), *row.split, row.microbatches, row.size,
            options.chunks, options.shard, recomputed_words(options.recompute), row.seconds,
            row.run is not None, row.bubble, *row.fullest, row.memory, row.fits, row.gap,
            options.only_priced,
        )  # fmt: skip

    @classmethod
    def compared(cls, row: PlanRow) -> TableRow:
        """The row with its seconds by axis."""
        return replace(cls.of(row), axes=_not_hidden([*_choices(row)], row))


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
    gap: float | None
    """As in `PlanRow`. None where nothing is certified: of a given plan, and with options."""
    sent: tuple[int, ...]
    baseline: TableRow | None
    """Megatron's fastest plan."""
    following: TableRow | None
    """The next best of the answer that is not Megatron's fastest plan."""
    best: TableRow | None
    """The best plan of the space, where a given plan is compared with it."""
    stages: str | None
    """Stages, micro-batches and options of a plan that has them. Times are means over stages."""
    waiting: float
    """Seconds in which a device of a pipeline waits, as a mean over all; 0 without one."""
    choices: tuple[ChosenSequence, ...] = field(repr=False)
    axes: dict[str, float]
    """Seconds by axis: computing, and communication that is not hidden."""
    only_priced: str | None
    """What of the model or the options no training step here has."""
    rows: tuple[TableRow, ...] = field(repr=False)
    """All plans of the answer, the best first."""
    stopped: bool
    """Whether Ctrl-C ended the search, so that the first plan is the best so far."""
    days: float | None = None
    """Days of training on a number of tokens, where one is given."""


def explain(
    rows: Several[PlanRow], *, neighbours: bool = False, best: PlanRow | None = None
) -> Explanation:
    """Explain the first of some plans, with `neighbours` also the alternatives of every operator.

    Of the others Megatron's fastest is its baseline. With the `best` plan of a search, also what
    each chosen operator takes more than in that.
    """
    row, model = rows[0], rows[0].model
    texts, chosen = row.sequences, [*_choices(row)]
    chosen = [replace(choice, sequence=texts.get(choice.operator, choice.sequence))
              for choice in chosen]  # fmt: skip
    if neighbours:
        every = _every_option(row)
        chosen = [replace(choice, neighbours=tuple(_neighbours(row, *every, choice.operator)))
                  for choice in chosen]  # fmt: skip
    if best is not None:
        chosen = _above(chosen, best)
    training, speed = row.stages[0].training, row.batch * model.context / row.seconds
    peak = row.cluster.rate(training.dtype).peak
    choices = tuple(folded(chosen))
    terms = {term: sum(choice.layers * choice.terms[term] for choice in choices)
             for term in Cost._fields}  # fmt: skip
    table, baseline = tuple(map(TableRow.of, rows)), _megatron(rows)
    others = (other for other in rows[1:] if other is not baseline)
    following = next((other for other in others if _are_alike(row, other)), None)
    return Explanation(
        model=model.family,
        cluster=row.cluster.name,
        devices=row.devices,
        batch=row.batch,
        positions=training.positions,
        dtype=training.dtype,
        space=row.space,
        seconds=row.seconds,
        priced=row.price,
        simulated=row.run is not None,
        hidden_sums=_hidden(row),
        tokens_per_second=speed,
        mfu=speed * flops_per_token(model) / (row.devices * peak),
        peak=peak,
        terms=terms | row.fullest._asdict(),
        moving=sum(choice.layers * choice.moving for choice in choices),
        memory=row.memory,
        limit=row.cluster.memory,
        fits=max(row.held) <= row.cluster.memory,
        held=row.held,
        counted=row.account is not None,
        gap=row.gap,
        sent=row.sent,
        baseline=None if baseline is None else TableRow.compared(baseline),
        following=None if following is None else TableRow.compared(following),
        best=None if best is None else TableRow.compared(best),
        stages=_stages(row),
        waiting=_waiting(chosen, row),
        choices=choices,
        axes=_not_hidden(chosen, row),
        only_priced=row.only_priced,
        rows=table,
        stopped=any(known.stopped for known in rows),
    )


def _stages(row: PlanRow) -> str | None:
    """Stages, micro-batches and options in words, if there are any."""
    options, stages, words = row.options, row.split.stages, list[str]()
    if stages > 1:
        words.append(f"{options.schedule} of {stages} x {row.microbatches} stages x micro-batches")
    elif row.microbatches > 1:
        words.append(f"{row.microbatches} micro-batches")
    if options.shard != "none":
        words.append(f"{options.shard} in shards")
    if options.recompute != "none":
        words.append(f"recompute {recomputed_words(options.recompute)}")
    return ", ".join(words) + ": times are means over stages" * (stages > 1) or None


def _above(chosen: Several[ChosenSequence], best: PlanRow) -> list[ChosenSequence]:
    """Chosen sequences, each with what it takes more than in another split."""
    there = {choice.operator: _all(choice) for choice in _choices(best)}
    return [replace(choice, more=_all(choice) - there.get(choice.operator, 0.0))
            for choice in chosen]  # fmt: skip


def _hidden(row: PlanRow) -> float:
    """Seconds of sums of gradients that run during backward, as a mean over stages."""
    hidden = (chunk.hidden(row.options.shard)[1] for chunk in row.chunks)
    return max(0.0, sum(hidden)) / row.split.stages


def _waiting(chosen: Several[ChosenSequence], row: PlanRow) -> float:
    """Seconds in which a device waits for others, as a mean over all."""
    if row.split.stages == 1:
        return 0.0
    return max(0.0, row.price + _hidden(row) - sum(map(_all, chosen)))


def _not_hidden(chosen: Several[ChosenSequence], row: PlanRow) -> dict[str, float]:
    """Seconds by axis, without those of sums of gradients that run during backward."""
    axes = seconds_by_axis(chosen, _waiting(chosen, row))
    return axes | {"data": max(0.0, axes["data"] - _hidden(row))}


def _megatron(rows: Several[PlanRow]) -> PlanRow | None:
    """Megatron's fastest plan; those within a device's memory come first."""
    named = [other for other in rows if other.name]
    alike = [other for other in named if (other.run is None) == (rows[0].run is None)] or named
    return min(alike, key=lambda other: (not other.fits, other.seconds), default=None)


def _are_alike(row: PlanRow, other: PlanRow) -> bool:
    """Whether the seconds of two plans are of one kind, and both run and fit, or neither."""
    return all(
        kind(row) == kind(other)
        for kind in (lambda one: one.run is None, lambda one: one.only_priced, lambda one: one.fits)
    )


def _all(choice: ChosenSequence) -> float:
    return choice.layers * (choice.seconds + choice.moving)


def _choices(row: PlanRow) -> Iterator[ChosenSequence]:
    """The operators of all chunks. What is received from another stage moves to the first."""
    options, times, stages = row.options, row.microbatches, row.split.stages
    first = 0
    for chunk, boundary in zip(row.chunks, (0.0, *row.boundaries), strict=True):
        runs, received = repeated(chunk.stage.operators, options.recompute), boundary
        for chosen in chunk.stage.chosen:
            cost = chosen.cost
            again, moves = (chosen.name in names for names in (runs.again, runs.received))
            often, once = seconds_for_parameters(cost._asdict(), options.shard)
            update = cost.update if options.shard == "none" else cost.shard_update
            messages = cost.communication + often
            states = cost.states
            if again and runs.sends:
                messages += cost.forward_communication
            if options.shard != "none" and cost.parameters:
                states *= cost.shard / cost.parameters
            priced = cost._replace(
                compute=times * (cost.compute + again * cost.forward) / stages,
                communication=times * messages / stages,
                reduction=(once - update) / stages,
                update=update / stages,
                states=states,
            )
            moved = chosen.forward + chosen.backward + received + moves * chosen.forward
            copied: tuple[str, ...] = ()
            over: float | None = None
            if chosen.operator.kind == "linear":
                M, N, K = chunk.stage.training.rows, chosen.operator.N, chosen.operator.K
                copied, over = _over_bound(chosen.candidate.elements, M, N, K)
            yield ChosenSequence(
                operator=name_in_model(chosen.name, first),
                layers=1,
                sequence=chosen.candidate.text,
                terms=priced._asdict(),
                seconds=priced.seconds,
                moving=times * moved / stages,
                kept=priced.kept,
                starts_replicated=copied,
                over_bound=over,
            )
            received = 0.0
        first += sum(count for _, count in chunk.layers)


@lru_cache(maxsize=1024)
def _over_bound(
    elements: tuple[Element, ...], M: int, N: int, K: int
) -> tuple[tuple[str, ...], float | None]:
    """The operands that start replicated, and what is sent over the bound where none does.

    Blocks are counted in the sequence's program, as shares of their tensors: so a vocabulary needs
    no padding.
    """
    copied = {name for element in elements for name in starts_replicated(moving(element).movement)}
    sequence = Sequence(elements)
    if copied or sequence.ranks > MOST_COUNTED:
        return tuple(sorted(copied)), None
    sizes, sent = {"I": M * N, "W": N * K, "O": M * K}, Fraction(0)
    for block, times in sent_blocks(lower(sequence)).items():
        tensor = block.partition("[")[0].removeprefix("d")
        cut = prod(sequence.grid.get(dim, 1) for dim in tensor_dims(tensor))
        sent += times * Fraction(sizes[tensor], cut * sequence.ranks)
    bound = training_step(M, N, K, sequence.ranks)
    return (), float(sent) / bound if bound else None


def _every_option(row: PlanRow) -> tuple[Planner, dict[str, int]]:
    """A planner with all options of the sequences of a plan, and the options of the plan."""
    if row.planner is None:
        raise PlanError(
            "--explain: expected the fastest plan to have one stage, got "
            f"{row.split.stages} stages: write --pp 1"
        )
    planner = row.planner.all_counted()
    choices = {}
    for chosen in row.stages[0].chosen:
        options, text = planner.options(chosen.name), chosen.candidate.text
        alike = (number for number, leaves in enumerate(options.leaves) if leaves == chosen.leaves)
        numbers = {known.text: number for number, known in enumerate(options.candidates)}
        # Of operators that are not linear there is one option for a layout, however it is written.
        choices[chosen.name] = numbers[text] if text in numbers else next(alike)
    return planner, choices


def _neighbours(
    row: PlanRow, planner: Planner, choices: Mapping[str, int], name: str
) -> Iterator[Neighbour]:
    """The cheapest alternatives of an operator, with all other choices fixed.

    Of several at one price, to a nanosecond and a byte, the first is named; those at the price of
    the chosen one are left out.
    """
    options, number = planner.options(name), choices[name]
    costs, kept = planner.costs_around(name, choices), planner.kept_of(name, options)
    seconds, kept = row.microbatches * (costs - costs[number]), kept - kept[number]
    at_price: dict[tuple[float, float], list[int]] = {}
    for place in np.argsort(seconds, kind="stable").tolist():
        price = round(float(seconds[place]), 9), round(float(kept[place]))
        at_price.setdefault(price, []).append(place)
    at_price.pop((0.0, 0), None)
    for first, *rest in islice(at_price.values(), NEIGHBOURS):
        text = options.candidates[first].text
        yield Neighbour(text, float(seconds[first]), float(kept[first]), len(rest))


def folded(choices: Several[ChosenSequence]) -> Iterator[ChosenSequence]:
    """Consecutive layers with equal sequences as one; moving is their mean, more their sum."""
    by_layer = [
        (layer, [*inside])
        for layer, inside in groupby(choices, lambda choice: layer_of(choice.operator))
    ]
    for _, group in groupby(by_layer, lambda layer: [_in_layer(choice) for choice in layer[1]]):
        equal = [*group]
        (first, chosen), (last, _) = equal[0], equal[-1]
        for place, choice in enumerate(chosen):
            same = [inside[place] for _, inside in equal]
            name = choice.operator
            if len(equal) > 1:
                name = f"blocks.{first}-{last}.{layer_operator(name)}"
            moving = sum(one.moving for one in same) / len(same)
            more = None if choice.more is None else sum(one.more or 0.0 for one in same)
            yield replace(choice, operator=name, layers=len(same), moving=moving, more=more)


def _in_layer(choice: ChosenSequence) -> tuple[str, str]:
    """The name of an operator without the number of its layer, and its sequence."""
    name = choice.operator
    return name if layer_of(name) is None else layer_operator(name), choice.sequence


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


def price_of(
    plan: Plan,
    cluster: Cluster,
    batch: int,
    dtype: str | None = None,
    space: SpaceName = "paper",
    tick: Callable[[str], object] = str,
) -> Explanation:
    """Explain a plan on a cluster, with what each operator takes more than in the best one.

    A step has `batch` sequences of the model's context. The best is the first of the table of a
    search, or the plan itself where that is faster. Raises `ClusterError` for devices or a data
    type that the cluster has not, and `PlanError` for a batch that does not fit the plan.
    """
    plan.check_batch(batch, plan.model.context)
    kind = dtype or next(iter(cluster.rates))
    splits = Splits(
        plan.model, cluster, plan.ranks, batch, kind, space, choices=EVERY_CHOICE, tick=tick,
        posted=True,
    )  # fmt: skip
    given = splits.given(plan)
    tick("simulation of the plan")
    asked = given.simulated() if given.is_counted else given
    others = ranked(splits)
    best = min(asked, others[0], key=place_of)
    return explain([asked, *others], best=best)


HEADS = ("operator", "layers", "sequence", "compute", "communication", "moved", "all", "MiB kept",
         "/bound")  # fmt: skip
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
    over = "-" if choice.starts_replicated else ""
    if choice.over_bound is not None:
        over = f"{choice.over_bound:.2f}"
    return (choice.operator, f"{choice.layers}", choice.sequence,
            *(f"{1e3 * seconds:,.{decimals}f}" for seconds in (*times, choice.moving, whole)),
            f"{choice.kept / 2**20:,.1f}", over, *_more(choice.more, decimals))  # fmt: skip


def _total(explanation: Explanation, decimals: int) -> tuple[str, ...]:
    terms = explanation.terms
    times = terms["compute"] + terms["update"], terms["communication"] + terms["reduction"]
    kept = sum(terms[term] for term in KEPT)
    mores = [choice.more for choice in explanation.choices if choice.more is not None]
    more = None if explanation.best is None else sum(mores)
    return (TOTAL, "", "",
            *(f"{1e3 * seconds:,.{decimals}f}" for seconds in
              (*times, explanation.moving, explanation.priced + explanation.hidden_sums)),
            f"{kept / 2**20:,.1f}", "", *_more(more, decimals))  # fmt: skip


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
    if explanation.waiting > 0:
        yield f"a device waits {1e3 * explanation.waiting:,.1f} ms of the step, as a mean"
    if explanation.best is not None:
        name = f"the best of space {explanation.space}, {explanation.best.name}"
        yield from _comparison(explanation, name, explanation.best)
    elif explanation.following is not None:
        name = f"the next, {explanation.following.name}"
        yield from _comparison(explanation, name, explanation.following)
    if explanation.baseline is not None:
        name = f"Megatron's fastest, {explanation.baseline.name}"
        yield from _comparison(explanation, name, explanation.baseline)
    yield from _certificate(explanation)
    if explanation.only_priced is not None:
        yield f"priced, not run: {explanation.only_priced}"
    faster = next((row for row in explanation.rows if row.only_priced and row.fits), None)
    is_answer = explanation.only_priced is None and explanation.best is None
    if is_answer and faster is not None and faster.seconds < explanation.priced:
        took = f"{1e3 * faster.seconds:,.1f} ms with {faster.only_priced}"
        yield f"priced, not run: {took}, {faster.name}"
    if not explanation.fits:
        yield "that is more memory than a device has"


def _certificate(explanation: Explanation) -> Iterator[str]:
    """What is certified, of the plan or of others in the table, and what is enumerated."""
    certified = next((row for row in explanation.rows if row.gap is not None), None)
    if explanation.stopped:
        yield "stopped: the best so far"
    if explanation.stopped or explanation.best is not None:
        return
    if explanation.gap is None:
        yield "enumerated, not certified: splits with the best sequences of each stage by itself"
    if certified is not None:
        gap = f"at most {ceil(1e4 * (certified.gap or 0.0)) / 100:.2f}% above the least of"
        plain = "without stages, micro-batches and options"
        yield (
            f"certified: {gap} all {plain}" if explanation.gap is not None else
            f"certified: {1e3 * certified.seconds:,.1f} ms {plain}, by price {gap} these"
        )  # fmt: skip


def _comparison(explanation: Explanation, name: str, baseline: TableRow) -> Iterator[str]:
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
