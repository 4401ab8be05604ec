"""Where the operators of a plan take their inputs and leave their outputs, and what moves between.

A linear operator fetches I where its forward starts and leaves O where it ends; dO comes where O
was left, and dI stays where backward ends. Any other operator works where a linear operator of its
sequence would leave its output, forward and backward alike: `M4` cuts its rows, `K4` its features,
`R4` replicates it, and `S2x2` lies as SUMMA does. The embedding takes `N` (or `Ns`) too, which cuts
the vocabulary: its partial rows are summed, and with `Ns` the sum is scattered along the rows.

Rows are the tokens of a step, sequence after sequence; `primepar.plan.row_cuts` has how many of
them a plan's cuts divide. All layouts here are the coarsest. A device holds one block of each,
but for those of a linear operator, of which it may hold several: some slices of the rows by some of
the columns. Its tensor is then these, put together in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

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
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout
from primepar.schedule.redistribute import moved


@dataclass(frozen=True)
class Way:
    """From one layout to another: `redistribution(source, target)` is its program."""

    source: Layout
    target: Layout

    @property
    def moved(self) -> Fraction:
        """What is sent by all devices together, as a part of the tensor."""
        return moved(self.source, self.target)


@dataclass(frozen=True)
class Edge:
    """A tensor between two operators: the producer's output, of `features` columns.

    The gradient that the consumer leaves is taken back to where the producer wants it. `rows` are
    the tokens of a step where it is None; where a head shares the embedding's table, the tensor of
    that edge is the table, of `rows` padded vocabulary entries.
    """

    producer: str
    consumer: str
    features: int
    forward: Way
    backward: Way
    rows: int | None = None

    def elements(self, tokens: int) -> tuple[int, int]:
        """Elements sent by all devices together, forward and backward, in a step of so many."""
        rows = tokens if self.rows is None else self.rows
        ways = self.forward.moved, self.backward.moved
        forth, back = (round(moved * rows * self.features) for moved in ways)
        return forth, back


@dataclass(frozen=True)
class ParameterPlace:
    """Where a parameter rests, and the groups of ranks whose gradients of it are to be summed.

    A rank in no group of two or more has the whole gradient of its block already; linear weights
    come summed out of their programs.
    """

    layout: Layout
    summed: Groups


def ends(plan: Plan, name: str) -> Ends:
    """Layouts of one operator. Raises `PlanError` for a name that the plan does not know."""
    return ends_of(plan.operator(name).kind, str(plan.sequence(name)))


def lookup(plan: Plan) -> Layout:
    """What each rank looks up: its block of (rows, vocabulary, hidden) of the embedding.

    `part(lookup(plan), (1, 2))` is where the table rests, `part(lookup(plan), (0, 2))` how partial
    rows lie. These are summed over `peers_along(1)`, at first into `summed_rows`; gradients of the
    table are summed over `peers_along(0)`.
    """
    return lookup_of(str(plan.sequence("embedding")))


def summed_rows(plan: Plan) -> Layout:
    """Where the sums of partial rows are made, in as many blocks as the embedding's output has.

    Each rank keeps a part of the rows that it has looked up: that of its output where this is
    among them, so that the fewest sums go on to where the output lies.
    """
    return summed_rows_of(str(plan.sequence("embedding")))


def edges(plan: Plan) -> tuple[Edge, ...]:
    """Every tensor between two operators, in the order of execution, and what moves for it."""
    found = []
    for consumer in plan.operators:
        for producer in consumer.inputs:
            left, taken = ends(plan, producer).output, ends(plan, consumer.name)
            features = plan.operator(producer).K
            if producer == "head":
                features = padded_vocabulary(plan)
            forth, back = Way(left, taken.input), Way(taken.input_gradient, left)
            found.append(Edge(producer, consumer.name, features, forth, back))
    table = table_edge(plan)
    return tuple(found) if table is None else (*found, table)


def table_edge(plan: Plan) -> Edge | None:
    """The way of the token table to the head that shares it, and of its gradient back.

    None where the head has a weight of its own.
    """
    if not plan.model.tied:
        return None
    table, weight = part(lookup(plan), (1, 2)), part(weight_layout(plan, "head"), (1, 0))
    forth, back = Way(table, weight), Way(weight, table)
    rows = padded_vocabulary(plan)
    return Edge("embedding", "head", plan.model.hidden, forth, back, rows)


def weight_layout(plan: Plan, name: str) -> Layout:
    """Where the weight of a linear operator rests before forward and after gradient, (N, K)."""
    return resident(str(plan.sequence(name)), "W")


def parameter_places(plan: Plan) -> dict[str, ParameterPlace]:
    """Place of every parameter of the model, over the parameter's own dims."""
    return {name: parameter_place(plan, name) for name in plan.model.parameter_shapes}


def padded_vocabulary(plan: Plan) -> int:
    """The vocabulary with padding to a multiple of every cut of it."""
    cuts = lcm(
        lookup(plan).grid[1],
        plan.sequence("head").grid["K"],
        ends(plan, "loss").input.grid[1],
    )
    return -(-plan.model.vocabulary // cuts) * cuts


def parameter_place(plan: Plan, parameter: str) -> ParameterPlace:
    """Place of one parameter of the model."""
    name, _, own = parameter.rpartition(".")
    if parameter == "embedding.token":
        whole = lookup(plan)
        return ParameterPlace(part(whole, (1, 2)), _several(whole.peers_along(0)))
    if plan.operator(name).kind == "linear" and own == "weight":
        return ParameterPlace(weight_layout(plan, name), ())
    output = ends(plan, name).output
    columns = part(output, (1,))
    if parameter == "embedding.position":
        columns = Layout((1, *columns.grid), tuple(tuple((0, *i) for i in b) for b in columns.held))
    return ParameterPlace(columns, _several(output.peers_along(0)))


def parameter_blocks(plan: Plan, parameter: str) -> Layout:
    """The blocks in which a program holds a parameter, and its gradient, where these rest.

    Those of its place, but for a weight, whose blocks are those that its sequence multiplies.
    """
    name, _, own = parameter.rpartition(".")
    if own == "weight" and plan.operator(name).kind == "linear":
        return layout(movement_of(str(plan.sequence(name)), True), "forward", "W", last=False)
    return parameter_place(plan, parameter).layout


def gradients_alike(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Parameters in groups whose gradients lie alike: their squares are summed together."""
    found: dict[Layout, list[str]] = {}
    for name in plan.model.parameter_shapes:
        found.setdefault(parameter_blocks(plan, name), []).append(name)
    return tuple(map(tuple, found.values()))


def _several(groups: Groups) -> Groups:
    return tuple(group for group in groups if len(group) > 1)
