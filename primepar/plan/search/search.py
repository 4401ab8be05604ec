"""The plan of least cost, exactly.

The search is segmented dynamic programming (PrimePar, section 5) over options of operators.

A table has the least cost of a segment of a chain for each pair of choices at its two ends. Joining
two tables at the node between them minimises over that node (equation 11). An edge from the first
to the last node of a segment is added to its table (equation 12). The node at the start of a table
is not counted in it, so that joined segments count no node twice. Example: nodes a-b-c with an edge
a-c: join the tables of a-b and b-c over b, then add the matrix of a-c. Tables keep no choices:
those inside a segment are recomputed along the best plan only.

Options are pruned first: those whose lower bound is above the cost of a known plan are in no better
plan. Few options remain, and the tables are small. The known plan is the best of the `FEW` options
with the lowest bounds.

A bound leaves out the edges that skip nodes. No edge has a negative cost: so the cheapest path
through a choice, along the chain alone, costs no more than any plan with that choice. Equal layers
are one run of links: after a few rounds the differences between choices repeat, and all later
rounds are known. The bounds are ours.

Legend: P, Q, R choices of the first, the middle and the last node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from primepar.errors import PlanError
from primepar.models.graph import Operator
from primepar.plan.search.options import Choices, Matrix, Numbers, Vector, kind_of
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult

STREAM = "blocks.0.add2"
"""The operator whose layouts index the tables of segments that start in the residual stream."""
SLACK = 1e-9
"""Relative difference that sums in another order may have."""
TICK = 1e-12
"""Seconds to which partial sums are rounded down, so that equal layers have equal costs."""
FEW = 32
"""Options of an operator of which the best plan is sought first."""
EXACT = 32
"""Most devices for which all sequences are compared."""

Costs = Mapping[object, Vector]
"""Kind of operator -> the cost of each of its options; infinite for one that is left out."""


@dataclass(frozen=True, eq=False)
class Table:
    """Least cost of a segment by the choices at its ends; `parts` are the two joined tables."""

    costs: Matrix
    parts: tuple[Table, Table] | None = None

    def then(self, other: Table) -> Table:
        """This segment joined with the one that starts where it ends (equations 11, 13, 14)."""
        return Table(cheapest_sums(self.costs, other.costs), (self, other))

    def plus(self, extra: Matrix) -> Table:
        """The same segment with an additional cost by the choices at its ends (equation 12)."""
        return Table(self.costs + extra, self.parts)

    def within(self, first: int, last: int) -> Choices:
        """Choices of the nodes between the ends on the cheapest path."""
        if self.parts is None:
            return ()
        first_part, second_part = self.parts
        middle = int((first_part.costs[first] + second_part.costs[:, last]).argmin())
        return (*first_part.within(first, middle), middle, *second_part.within(middle, last))

    def at(self, choices: Numbers) -> Table:
        """The segment from some of the choices of its first node, in that order."""
        parts = self.parts and (self.parts[0].at(choices), self.parts[1])
        return Table(self.costs[choices], parts)


def powers(table: Table, times: int) -> list[Table]:
    """Tables which, one after another, are a segment `times` times; it ends where it starts.

    Each table is the one before it joined with itself, so that there are few. Example: for 5 times
    those of one and of four segments.
    """
    tables: list[Table] = []
    while times:
        if times % 2:
            tables.append(table)
        times //= 2
        table = table.then(table) if times else table
    return tables


def cheapest_sums(left: Matrix, right: Matrix) -> Matrix:
    """The least of left_PQ + right_QR over Q, the product of the (min, +) algebra."""
    least = np.full((left.shape[0], right.shape[1]), np.inf)
    sums = np.empty_like(least)
    for column, row in zip(left.T, right, strict=True):
        np.add(column[:, None], row, out=sums)
        np.minimum(least, sums, out=least)
    return least


class ChainStep(NamedTuple):
    """The next node of a chain: the costs of its edge, of the node, and of an edge from the first.

    `edge` is from the previous node, by the choices of both.
    """

    edge: Matrix
    node: Vector
    first: Matrix | None = None

    def after(self, table: Table | None) -> Table:
        """The segment extended by this node."""
        step = Table(self.edge + self.node)
        joined = step if table is None else table.then(step)
        return joined if self.first is None else joined.plus(self.first)


def stretch(steps: Iterable[ChainStep]) -> Table:
    """A segment of the graph: nodes in a chain, some of which also read from the first one.

    Raises `ValueError` for no steps.
    """
    first, *others = steps
    return reduce(lambda table, step: step.after(table), others, first.after(None))


def cheapest(start: Vector, tables: Several[Table]) -> tuple[float, Choices]:
    """The least cost along consecutive segments, and the choice of every node.

    `start` is the cost of the first node. Propagating one vector takes P^2 sums per segment, where
    joining two tables takes P^3. The cost is infinite where no choice is possible.
    """
    reached = along(start, tables)
    last = int(reached[-1].argmin())
    cost, choices = float(reached[-1][last]), [last]
    for costs, table in zip(reached[-2::-1], reversed(tables), strict=True):
        first = int((costs + table.costs[:, last]).argmin())
        choices[:0] = (first, *table.within(first, last))
        last = first
    return cost, tuple(choices)


def along(start: Vector, tables: Iterable[Table]) -> list[Vector]:
    """The least cost from the start to every choice of each node at which segments meet."""
    reached = [start]
    for table in tables:
        reached.append((reached[-1][:, None] + table.costs).min(axis=0))
    return reached


def ahead(tables: Several[Table], end: Vector) -> Vector:
    """The least cost from every choice of the first node to the last, whose cost is `end`."""
    for table in reversed(tables):
        end = (table.costs + end).min(axis=1)
    return end


def segments(operators: Several[Operator]) -> list[list[Operator]]:
    """The chain of operators, cut at the nodes that no edge skips; segments share their ends.

    Example: a residual addition reads the previous addition too, so that the operators from one
    addition to the next form a segment.
    """
    position = {operator.name: place for place, operator in enumerate(operators)}
    earliest = len(position)
    chain: list[list[Operator]] = []
    for operator in reversed(operators):
        if position[operator.name] <= earliest and position[operator.name] < len(position) - 1:
            chain[-1].append(operator)
            chain.append([operator])
        elif chain:
            chain[-1].append(operator)
        else:
            chain.append([operator])
        earliest = min([earliest, *(position[producer] for producer in operator.inputs)])
    return [segment[::-1] for segment in chain[:-1]][::-1]


class Exact:
    """The plan of least cost out of the options `among`, given by kind of operator."""

    def __init__(
        self, planner: Planner, among: Mapping[object, Numbers], costs: Costs | None = None
    ) -> None:
        self.planner, self.among = planner, among
        self.costs = objectives(planner) if costs is None else costs
        self.graph = planner.graph
        self._edges: dict[object, Matrix] = {}
        self._tables: dict[object, Table] = {}

    @classmethod
    def of(cls, planner: Planner, costs: Costs | None = None) -> Exact:
        """The search among the options that can be in a plan as cheap as a known one."""
        costs = objectives(planner) if costs is None else costs
        least = least_with(planner, costs)
        if max(map(len, least.values())) <= FEW:
            return cls(planner, {kind: np.flatnonzero(np.isfinite(bound))
                                 for kind, bound in least.items()}, costs)  # fmt: skip
        nearest = nearest_options(planner, least, FEW, costs)
        most = nearest.best[0] * (1 + SLACK)
        among = {kind: np.flatnonzero(bound <= most) for kind, bound in least.items()}
        if all(len(few) <= len(nearest.among[kind]) for kind, few in among.items()):
            return nearest
        return cls(planner, among, costs)

    @cached_property
    def best(self) -> tuple[float, Choices]:
        """The least cost, and the planner's option of every operator in that plan, in order.

        Equal layers are one table, joined with itself by doubling.
        """
        before, layer, after = self.graph.split(segments(self.graph.operators))
        tables = [self._segment(segment) for segment in before]
        if layer:
            first, *others = (self._segment(segment) for segment in layer)
            for other in others:
                first = first.then(other)
            tables += powers(first, self.graph.layers - 1)
        first_of_last = len(tables)
        tables += [self._segment(segment) for segment in after]
        name = self.planner.first
        start, first_options = self._objective(name), self._kept(name)
        if self.planner.tied:
            ends = [segment[-1].name for segment in after]
            head = first_of_last + ends.index("head") + 1
            start, first_options, tables = self._tied(start, tables, head)
        cost, choices = cheapest(start, tables)
        return cost, self._numbers(first_options, choices)

    def _numbers(self, first: Numbers, choices: Choices) -> Choices:
        """The planner's option numbers for choices among the kept options."""
        options = [first, *(self.among[kind_of(operator)]
                            for operator in self.planner.operators[1:])]  # fmt: skip
        return tuple(int(numbers[choice]) for numbers, choice in zip(options, choices, strict=True))

    def _kept(self, name: str) -> Numbers:
        return self.among[kind_of(self.planner.named[name])]

    def _objective(self, name: str) -> Vector:
        return self.costs[kind_of(self.planner.named[name])][self._kept(name)]

    def _edge(self, producer: str, consumer: str) -> Matrix:
        key = kind_of(self.planner.named[producer]), kind_of(self.planner.named[consumer])
        if key not in self._edges:
            index = np.ix_(self._kept(producer), self._kept(consumer))
            self._edges[key] = self.planner.edge(producer, consumer)[index]
        return self._edges[key]

    def _step(self, operator: Operator, before: str, first: str) -> ChainStep:
        """An operator as the next node of a segment."""
        edge = self._edge(before, operator.name)
        several = len(operator.inputs) > 1
        extra = self._edge(first, operator.name) if several else None
        return ChainStep(edge, self._objective(operator.name), extra)

    def _segment(self, operators: Several[Operator]) -> Table:
        """The table of one segment.

        A segment of a block starts in the residual stream, after an addition, the embedding or a
        norm. Its table depends on the layout of the stream alone, so that one table serves all.
        """
        names = [operator.name for operator in operators]
        begin = STREAM if len(names) > 2 and self._in_stream(names[0]) is not None else names[0]
        key = tuple(kind_of(self.planner.named[name]) for name in (begin, *names[1:]))
        if key not in self._tables:
            pairs = zip(operators[1:], (begin, *names[1:]), strict=False)
            self._tables[key] = stretch(self._step(operator, before, begin)
                                        for operator, before in pairs)  # fmt: skip
        table, choices = self._tables[key], self._in_stream(names[0])
        return table if begin == names[0] or choices is None else table.at(choices)

    def _in_stream(self, name: str) -> Numbers | None:
        """Option of the stream with the layout that each option of an operator leaves, if all."""
        if STREAM not in self.planner.named:
            return None
        option_of = {layout: place for place, layout in enumerate(self._leaves(STREAM))}
        options = [option_of.get(layout) for layout in self._leaves(name)]
        return None if None in options else np.array(options)

    def _leaves(self, name: str) -> list[int]:
        layouts: list[int] = self.planner.options(name).leaves[self._kept(name)].tolist()
        return layouts

    def _tied(
        self, start: Vector, tables: list[Table], head: int
    ) -> tuple[Vector, Numbers, list[Table]]:  # fmt: skip
        """Fix the best embedding of a tied model, with the table's redistribution to the head.

        The redistribution is an edge over the whole chain. A lower bound of each pair (embedding,
        head) is its cost plus the larger of two costs: the best plan with this embedding, and the
        best with this head, both without that edge. Embeddings are tried in the order of their
        bounds, until a bound is no lower than the best cost so far.
        """
        embeddings = self._kept("embedding")
        after = ahead(tables[head:], np.zeros(len(self._kept("loss"))))
        tie = self.planner.tie()[np.ix_(embeddings, self._kept("head"))]
        with_embedding = start + ahead(tables[:head], after)
        with_head = along(start, tables[:head])[-1] + after
        bounds = (np.maximum(with_embedding[:, None], with_head) + tie).min(axis=1)
        best, chosen = np.inf, 0
        for option in np.argsort(bounds, kind="stable").tolist():
            if bounds[option] >= best:
                break
            reached = along(start[[option]], [tables[0].at(np.array([option])), *tables[1:head]])
            cost = float((reached[-1] + tie[option] + after).min())
            if cost < best:
                best, chosen = cost, option
        index = np.array([chosen])
        first = tables[0].at(index)
        tables = [first, *tables[1 : head - 1], tables[head - 1].plus(tie[chosen]), *tables[head:]]
        return start[index], embeddings[index], tables


def objectives(planner: Planner) -> Costs:
    """The planner's own cost of every option."""
    return {kind_of(operator): planner.objective(operator.name)
            for operator in planner.graph.operators}  # fmt: skip


def nearest_options(
    planner: Planner, least: Mapping[object, Vector], count: int, costs: Costs
) -> Exact:
    """The search among the `count` options of each operator with the lowest bounds."""
    among = {}
    for kind, bound in least.items():
        nearest = np.sort(np.argsort(bound, kind="stable")[:count])
        among[kind] = nearest[np.isfinite(bound[nearest])]
    return Exact(planner, among, costs)


def least_with(planner: Planner, costs: Costs | None = None) -> dict[object, Vector]:
    """A lower bound of the cost of a plan with each option, by kind of operator."""
    costs = objectives(planner) if costs is None else costs
    start, chain = _chain(planner, costs)
    least: dict[object, Vector] = {}
    for operator, bound in zip(planner.graph.operators, bounds(start, chain), strict=True):
        kind = kind_of(operator)
        least[kind] = np.minimum(least.get(kind, bound), bound)
    return least


def _chain(planner: Planner, costs: Costs) -> tuple[Vector, list[LinkRun]]:
    """Costs of the first operator, and the links of the chain to all later ones."""
    graph = planner.graph
    runs, before = [], graph.operators[0].name
    for number, part in enumerate(graph.split(graph.operators[1:])):
        links = []
        for operator in part:
            links.append(ChainStep(planner.edge(before, operator.name), costs[kind_of(operator)]))
            before = operator.name
        if links:
            runs.append(LinkRun(links, graph.layers - 1 if number == 1 else 1))
    return costs[kind_of(graph.operators[0])], runs


Step = Callable[[Vector, ChainStep], Vector]
"""Costs after a link, from those before it."""


class LinkRun(NamedTuple):
    """Links that follow one another `times` times."""

    links: Several[ChainStep]
    times: int


Rounds = list[tuple[float, list[Vector]]]
"""Of every round along a run: the costs before its first link and after each, less a common one.

Rounds with equal costs share one list: after a few, the differences between choices repeat.
"""


def bounds(start: Vector, chain: Several[LinkRun]) -> list[Vector]:
    """Lower bounds of all paths through each choice: of the start, then by link of every run.

    For a run that repeats, the bound of a link is the least over its rounds.
    """
    before, _ = _along(start, chain, _reached)
    end = chain[-1].links[-1].node
    backwards = [LinkRun(run.links[::-1], run.times) for run in reversed(chain)]
    after, ahead = _along(np.zeros_like(end), backwards, _ahead)
    least = [start + ahead]
    for run, reached, left in zip(chain, before, reversed(after), strict=True):
        pairs: dict[tuple[int, int], tuple[float, list[Vector], list[Vector]]] = {}
        for (low, costs), (high, rest) in zip(reached, reversed(left), strict=True):
            key = id(costs), id(rest)
            if key not in pairs or low + high < pairs[key][0]:
                pairs[key] = low + high, costs, rest[::-1]
        least += [
            np.min([costs[link] + rest[link] + common for common, costs, rest in pairs.values()], 0)
            for link in range(1, len(run.links) + 1)
        ]
    return least


def _along(cost: Vector, chain: Several[LinkRun], step: Step) -> tuple[list[Rounds], Vector]:
    """The rounds of every run, and the cost at the end."""
    common, runs = 0.0, list[Rounds]()
    for run in chain:
        rounds, known = Rounds(), dict[bytes, list[Vector]]()
        for _ in range(run.times):
            least = float(cost.min())
            common, cost = common + least, np.floor((cost - least) / TICK) * TICK
            costs = known.get(cost.tobytes())
            if costs is None:
                costs = known[cost.tobytes()] = [cost]
                for link in run.links:
                    costs.append(step(costs[-1], link))
            rounds.append((common, costs))
            cost = costs[-1]
        runs.append(rounds)
    return runs, cost + common


def _reached(cost: Vector, link: ChainStep) -> Vector:
    reached: Vector = (cost[:, None] + link.edge).min(axis=0) + link.node
    return reached


def _ahead(cost: Vector, link: ChainStep) -> Vector:
    ahead: Vector = (link.edge + (link.node + cost)).min(axis=1)
    return ahead


def search(planner: Planner) -> SearchResult:
    """The plan of least cost. Raises `PlanError` for more than `EXACT` devices."""
    refuse_many(planner)
    cost, choices = Exact.of(planner).best
    return SearchResult.of(planner, choices, cost, gap=0.0)


def refuse_many(planner: Planner) -> None:
    """Raise `PlanError` for more than `EXACT` devices, unless the sequences are given."""
    devices = planner.training.links.devices
    if planner.candidates is None and devices > EXACT:
        raise PlanError(
            f"expected at most {EXACT} devices, among which all sequences are searched, got "
            f"{devices}: take --devices {EXACT}, or ask for the least time, for which stages and "
            "replicas are tried too"
        )
