"""The plan with the least redundant memory, by an integer linear program.

Redundant is what devices hold beyond one copy of every tensor. Of a tensor of |T| bytes p devices
hold |T| / shards each, by their layouts; |T| / p is the share of each, and the rest is redundant.
Shi et al. (FITEE 26(1), 2025) pose the problem and search by integer programming; all else is ours.

For every operator v and option p there is x[v, p], 0 or 1; one of them is 1 at each operator. For
every edge and pair of options there is y[p, q] >= 0, the linearized product of the x of both ends:
for each p the sum of y over q is x[p] of the producer, for each q that over p x[q] of the consumer.
Minimized are node costs times x plus edge costs times y. A bound is one more row.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from time import monotonic
from typing import Final

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.cost.linear import linear_working
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.search.options import Catalogue, Matrix, Numbers, Options, Vector
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import refuse_many
from primepar.schedule.operators import Linear

MOST_COLUMNS: Final = 1 << 20  # variables: the setup of the solver obeys no time limit
FINEST: Final = 2.0**-16  # bytes, the smallest unit of costs


@dataclass(frozen=True, eq=False)
class Graph:
    """Costs of one option for every node, several along the last axis of every array.

    The last cost of a choice also has the largest of its `peaks`. Equal arrays are one object.
    """

    nodes: Mapping[str, Matrix]
    edges: Mapping[tuple[str, str], Matrix]
    peaks: Mapping[str, Vector]

    def costs(self, choices: Mapping[str, int]) -> Vector:
        """Every cost of a choice."""
        nodes = [costs[choices[name]] for name, costs in self.nodes.items()]
        edges = [costs[choices[one], choices[two]] for (one, two), costs in self.edges.items()]
        total: Vector = np.sum(nodes + edges, axis=0)
        total[-1] += max(float(peaks[choices[name]]) for name, peaks in self.peaks.items())
        return total

    def undominated(self, mix: Matrix) -> dict[str, Numbers]:
        """The options of every node without those that another one can replace in every plan.

        It costs no more by any column of `mix`, which weighs the costs, whatever the neighbours
        choose, and has no larger peak. Example: A costs 2 more than B at its node. B replaces A if
        its edges cost at most 2 more in all. Of options that replace one another one stays.
        """
        weighed = {id(costs): costs @ mix for costs in (*self.nodes.values(), *self.edges.values())}
        turned = {number: costs.swapaxes(0, -2) for number, costs in weighed.items()}
        ends: dict[str, list[tuple[Matrix, str]]] = {name: [] for name in self.nodes}
        for (producer, consumer), costs in self.edges.items():
            ends[producer].append((weighed[id(costs)], consumer))
            ends[consumer].append((turned[id(costs)], producer))
        kept = {name: np.arange(len(costs)) for name, costs in self.nodes.items()}
        size, names, known = -1, list(kept), dict[object, Numbers]()
        while size != (size := sum(map(len, kept.values()))):
            for name in names:
                options, node, peaks = kept[name], weighed[id(self.nodes[name])], self.peaks[name]
                around = [(edge, kept[other]) for edge, other in ends[name]]
                key: tuple[object, ...] = (id(node), id(peaks), options.tobytes())
                key += tuple((id(edge), other.tobytes()) for edge, other in around)
                if key not in known:
                    costs = node[options]
                    edges = [edge[np.ix_(options, other)] for edge, other in around]
                    peak = peaks[options] if mix[-1].any() else np.zeros(len(options))
                    needed = np.ones(len(options), bool)
                    for option in range(len(options)):
                        instead = np.flatnonzero(needed & (peak <= peak[option]))
                        more = costs[instead] - costs[option]
                        for edge in edges:
                            more = more + (edge[instead] - edge[option]).max(axis=1)
                        needed[option] = not ((more <= 0).all(axis=1) & (instead != option)).any()
                    known[key] = options[needed]
                kept[name] = known[key]
            names.reverse()
        return kept


@dataclass(frozen=True)
class Solution:
    """The cheapest choice, None if none was found; no choice has less than `bound`.

    With `proved` the solver has finished: without a choice, none is within the bounds.
    """

    choices: dict[str, int] | None
    bound: float
    proved: bool
    columns: int


def solve(graph: Graph, weights: Vector, most: Vector, seconds: float = inf) -> Solution:
    """The choice of least weighted costs, each of which is at most `most`, by HiGHS in SciPy.

    The solver accepts sums that exceed a bound by up to a millionth. Such a choice is ruled out,
    and the program is solved again.
    """
    end, bounded = monotonic() + seconds, np.flatnonzero(most < inf)
    kept = graph.undominated(np.stack([weights, *np.eye(len(most))[bounded]], axis=1))
    nodes = {name: costs[kept[name]] for name, costs in graph.nodes.items()}
    edges = {
        (one, two): costs[np.ix_(kept[one], kept[two])] for (one, two), costs in graph.edges.items()
    }
    few = Graph(nodes, edges, {name: peaks[kept[name]] for name, peaks in graph.peaks.items()})
    columns = sum(costs[..., 0].size for costs in (*nodes.values(), *edges.values()))
    if columns > MOST_COLUMNS:
        return Solution(None, -inf, proved=False, columns=columns)
    program = _Program(few, weights)
    for cost in bounded.tolist():
        program.bound(cost, float(most[cost]))
    while True:
        solution = program.solve(max(0.0, end - monotonic()))
        if solution.choices is None:
            return solution
        choices = {name: int(kept[name][number]) for name, number in solution.choices.items()}
        if (graph.costs(choices) <= most).all():
            return replace(solution, choices=choices)
        chosen = [program.nodes[name][option] for name, option in solution.choices.items()]
        program.add(np.array(chosen), np.ones(len(chosen)), -inf, len(chosen) - 1.0)


class _Program:
    def __init__(self, graph: Graph, weights: Vector) -> None:
        self.graph, self.weights = graph, weights
        self._costs: list[Matrix] = []
        self._rows: list[tuple[Numbers, Vector, float, float]] = []
        self.columns = 0
        self.nodes = {name: self._new(costs) for name, costs in graph.nodes.items()}
        self._whole = self.columns
        for options in self.nodes.values():
            self.add(options, np.ones(len(options)), 1.0, 1.0)
        for (producer, consumer), costs in graph.edges.items():
            pairs = self._new(costs.reshape(-1, len(weights))).reshape(costs.shape[:2])
            for name, sums in ((producer, pairs), (consumer, pairs.T)):
                for option, products in zip(self.nodes[name], sums, strict=True):
                    signs = np.append(np.ones(len(products)), -1.0)
                    self.add(np.append(products, option), signs, 0.0, 0.0)
        self._peak = int(self._new(np.zeros((1, len(weights))))[0])

    def _new(self, costs: Matrix) -> Numbers:
        self._costs.append(costs)
        self.columns += len(costs)
        return np.arange(self.columns - len(costs), self.columns)

    def add(self, columns: Numbers, factors: Vector, least: float, most: float) -> None:
        self._rows.append((columns, factors, least, most))

    def bound(self, cost: int, most: float) -> None:
        """Bound one cost. The last has a column that is at least the chosen peak of every node."""
        factors = np.concatenate(self._costs)[:, cost] / most
        if cost == len(self.weights) - 1:
            factors[self._peak] = 1.0
            for name, peaks in self.graph.peaks.items():
                columns = np.append(self.nodes[name], self._peak)
                self.add(columns, np.append(peaks / most, -1.0), -inf, 0.0)
        self.add(np.arange(self.columns), factors, -inf, 1.0)

    def solve(self, seconds: float) -> Solution:
        """Run HiGHS for at most `seconds` seconds, without a tolerance for the gap."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        columns, factors, least, most = zip(*self._rows, strict=True)
        ends = np.cumsum([0, *map(len, columns)])
        rows = csr_array((np.concatenate(factors), np.concatenate(columns), ends))
        highest, whole = np.ones(self.columns), np.zeros(self.columns)
        highest[self._peak], whole[: self._whole] = inf, 1
        rows.resize(len(least), self.columns)
        solved = milp(
            np.concatenate(self._costs) @ self.weights,
            integrality=whole,
            bounds=Bounds(0, highest),
            constraints=LinearConstraint(rows, least, most),
            options={"mip_rel_gap": 0.0} | ({"time_limit": seconds} if seconds < inf else {}),
        )
        bound = -inf if solved.mip_dual_bound is None else float(solved.mip_dual_bound)
        choices = (
            None
            if solved.x is None
            else {name: int(solved.x[options].argmax()) for name, options in self.nodes.items()}
        )
        return Solution(choices, bound, solved.status in (0, 2), self.columns)


class Redundancy:
    """Bytes of a device beyond its share, by the options of a planner.

    An operator holds what it keeps through the training step (`Cost.kept`: parameters with their
    gradients and optimizer state, and what forward stashes). At its busiest step it also holds its
    other operands and results. Its share is what one device alone would hold, over the number of
    devices. Blocks in flight between two steps of a primitive are not counted. On an edge a device
    holds what it receives in the redistribution, forward and backward.
    """

    def __init__(self, planner: Planner) -> None:
        self.planner, self.devices = planner, planner.training.links.devices
        alone = replace(planner.training, links=ClusterLinks(planner.training.cluster, 0))
        self._alone = Catalogue.whole(planner.model, alone, "paper")

    def held(self, operator: Operator) -> Vector:
        """Redundant bytes of every option of an operator."""
        options = self.planner.options(operator.name), self._alone.options(operator)
        held, whole = (some.kept + self._working(operator, some) for some in options)
        redundant: Vector = held - whole[0] / self.devices
        return redundant

    def _working(self, operator: Operator, options: Options) -> Vector:
        """Transient bytes of a device at the busiest step of every option."""
        if operator.kind != "linear":
            return options.running
        training = self.planner.training
        shape = Linear(M=training.rows, N=operator.N, K=operator.K)
        return np.array([linear_working(training, shape, option) for option in options.candidates])

    def graph(self) -> Graph:
        """Redundant bytes, seconds of a step, and bytes that a device keeps with what runs."""
        planner, nodes, edges = self.planner, {}, {}
        known: dict[Hashable, Matrix] = {}
        for name, operator in planner.named.items():
            key, options = planner.key(name), planner.options(name)
            if key not in known:
                costs = self.held(operator), options.seconds, options.kept
                known[key] = np.stack(costs, axis=-1)
            nodes[name] = known[key]
            for producer in operator.inputs:
                ends, before = (planner.key(producer), key), planner.options(producer)
                if ends not in known:
                    size = planner.training.rows * planner.named[producer].K
                    moved = self._received(before.leaves, options.takes, size)
                    back = self._received(options.leaves_gradient, before.leaves, size)
                    costs = moved + back.T, planner.edge(producer, name), np.zeros(moved.shape)
                    known[ends] = np.stack(costs, axis=-1)
                edges[producer, name] = known[ends]
        if planner.tied:
            table, weight = planner.options(planner.first).weights, planner.options("head").weights
            size = planner.model.vocabulary * planner.model.hidden
            moved = self._received(table, weight, size) + self._received(weight, table, size).T
            costs = moved, planner.tie(), np.zeros(moved.shape)
            edges[planner.first, "head"] = np.stack(costs, axis=-1)
        return Graph(nodes, edges, {name: planner.options(name).running for name in nodes})

    def _received(self, sources: Numbers, targets: Numbers, elements: int) -> Matrix:
        """Bytes that the busiest device receives."""
        here, source = np.unique(sources, return_inverse=True)
        there, target = np.unique(targets, return_inverse=True)
        layouts = self.planner.catalogue.layouts
        shares: Matrix = layouts.received(here.tolist(), there.tolist()).astype(float)
        return float(elements * self.planner.training.item) * shares[np.ix_(source, target)]


def least_redundancy(
    planner: Planner, memory: float = inf, within: float = inf, timeout: float = inf
) -> tuple[SearchResult | None, Solution]:
    """The fastest of the plans with the least redundancy, in `timeout` seconds at most.

    The cost of the plan and the bound of the solution are redundant bytes of a device, of `memory`
    bytes. A step takes at most `within` seconds. The planner must be made with `tradeoffs`. Raises
    `PlanError` for too many devices.
    """
    refuse_many(planner)
    graph = Redundancy(planner).graph()
    planner.tick("integer program")
    # Costs are multiples of `unit` bytes. Seconds weigh less than half of one: they break ties.
    arrays = (*graph.nodes.values(), *graph.edges.values())
    slowest = sum(float(costs[..., 1].max()) for costs in arrays)
    distinct = {id(costs): costs[..., 0].ravel() for costs in arrays}
    whole = np.rint(np.concatenate([*distinct.values()]) / FINEST).astype(np.int64)
    unit = FINEST * int(np.gcd.reduce(whole) or 1)
    weights = np.array([1 / unit, 1 / (2 * slowest or inf), 0.0])
    # A bound of memory makes the program hard, so it is added where the optimum exceeds it.
    solution = solve(graph, weights, np.array([inf, within, inf]), timeout)
    if solution.choices is not None and graph.costs(solution.choices)[-1] > memory:
        solution = solve(graph, weights, np.array([inf, within, memory]), timeout)
    least = max(0.0, unit * ceil(solution.bound - 0.5)) if abs(solution.bound) < inf else 0.0
    if solution.choices is None:
        return None, replace(solution, bound=least)
    redundant = float(graph.costs(solution.choices)[0])
    result = SearchResult.of(planner, solution.choices, redundant)
    proved = solution.proved and least >= result.cost
    return result, replace(solution, bound=least, proved=proved)
