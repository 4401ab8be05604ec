"""Layouts of a plan: of the inputs and outputs of its operators and of its parameters.

A linear operator reads I in the layout of its first forward step and leaves O in that of the last
one. dO arrives in the layout of O, and dI stays in the layout of the last backward step. Any other
operator works, forward and backward, in the layout of O of a linear operator with its sequence:
`M4` shards its rows, `K4` its features, `R4` replicates it, and `S2x2` has the blocks of SUMMA. The
embedding also takes `N` or `Ns`, which shard the vocabulary: its partial sums are reduced, with
`Ns` by a reduce-scatter along the rows.

Rows are the tokens of a step, sequence after sequence; `primepar.plan.checks` states which
numbers of rows a plan can cut. All layouts here are the coarsest. A device holds one block of each.
Of a linear operator it may hold several: some slices of the rows by some slices of the columns. Its
local tensor is these blocks, put together in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm

from primepar.models.graph import Kind
from primepar.plan.operator_layouts import (
    Ends,
    Groups,
    ends_of,
    lookup_of,
    movement_of,
    part,
    resident,
    summed_rows_of,
)
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout, moved
from primepar.schedule.lowering import layout


@dataclass(frozen=True)
class Way:
    """A redistribution from one layout to another: `redistribution(source, target)` lowers it."""

    source: Layout
    target: Layout

    @property
    def moved(self) -> Fraction:
        """Elements that all devices together send, over the elements of the tensor."""
        return moved(self.source, self.target)


@dataclass(frozen=True)
class Edge:
    """A tensor between two operators: the producer's output, of `features` columns.

    `forward` redistributes it to the consumer, `backward` its gradient to the producer. `rows` is
    None for the tokens of a step. Where the head shares the embedding's table, the tensor of that
    edge is the table, of `rows` padded vocabulary entries.
    """

    producer: str
    consumer: str
    features: int
    forward: Way
    backward: Way
    rows: int | None = None

    def elements(self, tokens: int) -> tuple[int, int]:
        """Elements that all devices send, forward and backward, in a step of `tokens` tokens."""
        rows = tokens if self.rows is None else self.rows
        parts = self.forward.moved, self.backward.moved
        forward, backward = (round(moved * rows * self.features) for moved in parts)
        return forward, backward


@dataclass(frozen=True)
class ParameterPlace:
    """Resident layout of a parameter, and the groups of ranks that all-reduce its gradient.

    A rank in no group has the whole gradient of its block already; the programs of linear operators
    reduce the gradients of their weights themselves.
    """

    layout: Layout
    summed: Groups


def ends(plan: Plan, name: str) -> Ends:
    """Layouts of one operator. Raises `PlanError` for a name that the model has not."""
    return ends_of(plan.operator(name).kind, str(plan.sequence(name)))


def lookup(plan: Plan) -> Layout:
    """What each rank looks up: its block of (rows, vocabulary, hidden) of the embedding.

    `part(lookup(plan), (1, 2))` is the layout of the table, `part(lookup(plan), (0, 2))` that of
    the partial rows. Partial rows are reduced over `peers_along(1)`, first into `summed_rows`;
    gradients of the table are reduced over `peers_along(0)`.
    """
    return lookup_of(str(plan.sequence("embedding")))


def summed_rows(plan: Plan) -> Layout:
    """Layout in which partial rows are reduced; it has the grid of the embedding's output.

    Each rank keeps a part of the rows that it has looked up. It keeps its own block of the output
    where that is among them, so that as few sums as possible move to the layout of the output.
    """
    return summed_rows_of(str(plan.sequence("embedding")))


def edges(plan: Plan) -> tuple[Edge, ...]:
    """Every tensor between two operators, in the order of execution, and what moves for it."""
    tensors = []
    for consumer in plan.operators:
        for producer in consumer.inputs:
            output, consumer_layouts = ends(plan, producer).output, ends(plan, consumer.name)
            features = plan.operator(producer).K
            if producer == "head":
                features = padded_vocabulary(plan)
            forward = Way(output, consumer_layouts.input)
            backward = Way(consumer_layouts.input_gradient, output)
            tensors.append(Edge(producer, consumer.name, features, forward, backward))
    table = table_edge(plan)
    return tuple(tensors) if table is None else (*tensors, table)


def table_edge(plan: Plan) -> Edge | None:
    """The redistribution of the token table to the head that shares it, and of its gradient back.

    None where the head has a weight of its own.
    """
    if not plan.model.tied:
        return None
    table, weight = part(lookup(plan), (1, 2)), part(weight_layout(plan, "head"), (1, 0))
    forward, backward = Way(table, weight), Way(weight, table)
    rows = padded_vocabulary(plan)
    return Edge("embedding", "head", plan.model.hidden, forward, backward, rows)


def weight_layout(plan: Plan, name: str) -> Layout:
    """Resident layout, over (N, K), of a linear operator's weight, as before forward."""
    return resident(str(plan.sequence(name)), "W")


def parameter_places(plan: Plan) -> dict[str, ParameterPlace]:
    """Layout and sums of every parameter of the model, over the parameter's own dims."""
    return {name: parameter_place(plan, name) for name in plan.model.parameter_shapes}


def padded_vocabulary(plan: Plan) -> int:
    """The vocabulary, padded to a multiple of every number of slices of it."""
    cuts = lcm(
        lookup(plan).grid[1],
        plan.sequence("head").grid["K"],
        ends(plan, "loss").input.grid[1],
    )
    return -(-plan.model.vocabulary // cuts) * cuts


def parameter_place(plan: Plan, parameter: str) -> ParameterPlace:
    """Layout and sums of one parameter of the model, over the parameter's own dims."""
    name, _, role = parameter.rpartition(".")
    kind, text = plan.operator(name).kind, str(plan.sequence(name))
    return _place(kind, text, parameter if kind == "embedding" else role)


@lru_cache(maxsize=1024)
def _place(kind: Kind, text: str, parameter: str) -> ParameterPlace:
    if parameter == "embedding.token":
        whole = lookup_of(text)
        return ParameterPlace(part(whole, (1, 2)), _of_two_or_more(whole.peers_along(0)))
    if kind == "linear" and parameter == "weight":
        return ParameterPlace(resident(text, "W"), ())
    output = ends_of(kind, text).output
    columns = part(output, (1,))
    if parameter == "embedding.position":
        columns = Layout((1, *columns.grid), tuple(tuple((0, *i) for i in b) for b in columns.held))
    return ParameterPlace(columns, _of_two_or_more(output.peers_along(0)))


def parameter_blocks(plan: Plan, parameter: str) -> Layout:
    """The blocks in which a program holds a parameter and its gradient between phases.

    They are those of `parameter_place`, except for a linear weight, which is held in the finer
    blocks that its sequence multiplies.
    """
    name, _, role = parameter.rpartition(".")
    if role == "weight" and plan.operator(name).kind == "linear":
        return layout(movement_of(str(plan.sequence(name)), True), "forward", "W", last=False)
    return parameter_place(plan, parameter).layout


def gradient_groups(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Parameters grouped by the layout of their gradients, whose squares are summed together."""
    groups: dict[Layout, list[str]] = {}
    for name in plan.model.parameter_shapes:
        groups.setdefault(parameter_blocks(plan, name), []).append(name)
    return tuple(map(tuple, groups.values()))


def _of_two_or_more(groups: Groups) -> Groups:
    return tuple(group for group in groups if len(group) > 1)


def parameter_layout(plan: Plan, parameter: str) -> Layout:
    """The resident layout of a parameter; devices of other stages hold none of it."""
    operator = parameter.rpartition(".")[0]
    return _on_stage(plan, parameter_place(plan, parameter).layout, operator)


def padded_shape(plan: Plan, parameter: str) -> tuple[int, ...]:
    """The shape of a parameter with the padding of the vocabulary."""
    shape = plan.model.parameter_shapes[parameter]
    padded = {"embedding.token": 0, "head.weight": 1}.get(parameter)
    vocabulary = padded_vocabulary(plan)
    return tuple(vocabulary if dim == padded else size for dim, size in enumerate(shape))


def logits_layout(plan: Plan) -> Layout:
    """The layout of the logits of a step; the row slices of a micro-batch follow one another."""
    layout, count = ends(plan, "head").output, plan.micro_batches
    rows, columns = layout.grid
    held = tuple(
        tuple((number * rows + row, column) for number in range(count) for row, column in blocks)
        for blocks in layout.held
    )
    return _on_stage(plan, Layout((count * rows, columns), held), "head")


def _on_stage(plan: Plan, layout: Layout, operator: str) -> Layout:
    """The layout of a tensor that the devices of one stage hold, that of an operator."""
    if plan.pipeline is None:
        return layout
    chunks = plan.pipeline.chunk_operators(plan.operators, plan.model.layers)
    stage = next(
        stage
        for (stage, _), operators in zip(plan.pipeline.stage_chunks, chunks, strict=True)
        if any(known.name == operator for known in operators)
    )
    before = ((),) * (stage * plan.stage_ranks)
    after = ((),) * (plan.ranks - len(before) - plan.stage_ranks)
    return Layout(layout.grid, (*before, *layout.held, *after))
