"""Stream-K for every number of workers, tiles and iterations: lemmas that Z3 proves.

The formulas are those that the program is built from (`WorkRule`), evaluated on symbols. Products
of two sizes, such as worker times share, stay products: each question has few of them, and Z3
decides it in milliseconds. How the lemmas imply the properties is argued in docs/stream-k.md.
If a lemma fails, the smallest sizes that break its property are searched with plain integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import z3

from primepar.partition.work_ranges import RULE, WorkRule
from primepar.verify.every_size.stream_k_faults import LIMIT, smallest_fault
from primepar.verify.report import PropertyResult
from primepar.verify.z3_answer import check_by

Term = Any
"""A Z3 integer or condition; z3 ships no types."""


class Lemma(NamedTuple):
    """What holds for all integers that satisfy `given`."""

    property: str
    name: str
    statement: str
    given: list[Term]
    claim: Term


@dataclass(frozen=True)
class Line:
    """The line of iterations that is divided, with all sizes as symbols.

    `share` is the quotient of all iterations by the workers, rounded up; this is what its two
    bounds state, without a division.
    """

    rule: WorkRule
    workers: Term
    tiles: Term
    iterations: Term
    share: Term

    @classmethod
    def of(cls, rule: WorkRule) -> Line:
        """The line of a rule."""
        return cls(rule, *z3.Ints("g T n p"))

    @property
    def total(self) -> Term:
        """Iterations of all tiles."""
        return self.tiles * self.iterations

    @property
    def sizes(self) -> list[Term]:
        """What is known of the sizes."""
        g, p = self.workers, self.share
        rounded = [g * p >= self.total, g * (p - 1) < self.total]
        return [g >= 1, self.tiles >= 1, self.iterations >= 1, *rounded]

    def takes(self, worker: Term, iteration: Term) -> Term:
        """A worker takes an iteration."""
        return self.rule.takes(worker, iteration, self.share)

    def owns(self, worker: Term, tile: Term) -> Term:
        """A worker owns a tile."""
        return self.rule.owns(worker, tile, self.share, self.iterations)

    def part(self, worker: Term, iteration: Term, tile: Term) -> list[Term]:
        """A worker takes an iteration, which is of a tile."""
        return [self.takes(worker, iteration), self.of_tile(iteration, tile)]

    def of_tile(self, iteration: Term, tile: Term) -> Term:
        """An iteration is one of a tile."""
        first, end = tile * self.iterations, (tile + 1) * self.iterations
        return (first <= iteration) & (iteration < end)


def lemmas(rule: WorkRule = RULE) -> list[Lemma]:
    """All lemmas about a rule, in the order of the properties that they imply."""
    line = Line.of(rule)
    return [*_coverage(line), *_completion(line), *_waiting(line), *_races(line), *_limits(line)]


def _coverage(line: Line) -> Iterator[Lemma]:
    x, y, i, r = z3.Ints("x y i r")
    g, p = line.workers, line.share
    yield Lemma(
        "coverage",
        "every iteration has a worker",
        "0 <= i < T*n, i = x*p + r, 0 <= r < p: x is a worker and takes i",
        [*line.sizes, i >= 0, i < line.total, i == x * p + r, r >= 0, r < p],
        z3.And(x >= 0, x < g, line.takes(x, i)),
    )
    yield Lemma(
        "coverage",
        "no iteration has two workers",
        "x and y take i: x = y",
        [*line.sizes, line.takes(x, i), line.takes(y, i)],
        x == y,
    )
    yield from _whole_tiles(line)


def _whole_tiles(line: Line) -> Iterator[Lemma]:
    """A wave of whole tiles has one for each worker, and the rest is on the line."""
    rule, g, (v, w, x, y) = line.rule, line.workers, z3.Ints("v w x y")
    one, other = rule.whole_tile(x, v, g), rule.whole_tile(y, w, g)
    yield Lemma(
        "coverage",
        "no whole tile has two workers",
        "v*g + x = w*g + y, 0 <= x, y < g: x = y and v = w",
        [g >= 1, x >= 0, x < g, y >= 0, y < g, one == other],
        z3.And(x == y, v == w),
    )
    yield Lemma(
        "coverage",
        "every whole tile has a worker",
        "0 <= x < g: x has tile v*g + x of the whole tiles, in wave v",
        [g >= 1, x >= 0, x < g, v >= 0],
        rule.whole_tile(x, v, g) == v * g + x,
    )
    tiles, whole, rest = z3.Ints("tiles q r")
    sizes = [g >= 1, whole >= 0, rest >= 0, rest < g, tiles == whole * g + rest]
    dealt = {variant: rule.waves(variant, whole, rest) * g for variant in ("one-tile", "two-tile")}
    alone = rule.waves("data-parallel", whole, rest) * g
    yield Lemma(
        "coverage",
        "whole waves leave the others",
        "T = q*g + r, 0 <= r < g: waves*g <= T under one-tile and two-tile, waves*g < T + g and "
        "waves*g >= T under data-parallel",
        sizes,
        z3.And(*(part >= 0 for part in dealt.values()), *(part <= tiles for part in dealt.values()),
               tiles <= alone, alone < tiles + g),
    )  # fmt: skip


def _completion(line: Line) -> Iterator[Lemma]:
    x, y, z, i, t, r = z3.Ints("x y z i t r")
    decisive, p = line.rule.decisive(t, line.iterations), line.share
    yield Lemma(
        "completion",
        "every tile has an owner",
        "0 <= t < T, d decides for t, d = x*p + r, 0 <= r < p: x is a worker, takes d and owns t",
        [*line.sizes, t >= 0, t < line.tiles, decisive == x * p + r, r >= 0, r < p],
        z3.And(x >= 0, x < line.workers, line.of_tile(decisive, t), line.owns(x, t)),
    )
    yield Lemma(
        "completion",
        "no tile has two owners",
        "x and y own t: x = y",
        [*line.sizes, line.owns(x, t), line.owns(y, t)],
        x == y,
    )
    yield Lemma(
        "completion",
        "no worker is skipped",
        "x owns t, y > x takes an iteration of t, x < z < y: z takes iterations of t too",
        [*line.sizes, line.owns(x, t), *line.part(y, i, t), x < z, z < y],
        z3.And(*line.part(z, line.rule.begin(z, line.share), t)),
    )


def _waiting(line: Line) -> Iterator[Lemma]:
    x, y, i, j, t, u = z3.Ints("x y i j t u")
    owned = [*line.sizes, line.owns(x, t), *line.part(y, i, t), x != y]
    yield Lemma(
        "deadlock-freedom",
        "waits are for later workers",
        "x owns t, y takes an iteration of t, x != y: y > x",
        owned,
        y > x,
    )
    yield Lemma(
        "deadlock-freedom",
        "a worker waits last",
        "x owns t and waits for y, x takes an iteration of u: u <= t",
        [*owned, *line.part(x, j, u)],
        u <= t,
    )
    yield Lemma(
        "deadlock-freedom",
        "a worker posts first",
        "x does not own t but takes an iteration of it, and one of u: u >= t",
        [*line.sizes, *line.part(x, i, t), z3.Not(line.owns(x, t)), *line.part(x, j, u)],
        u >= t,
    )
    yield Lemma(
        "deadlock-freedom",
        "times of events rise",
        "x owns t, y takes an iteration of t, x != y: 0 < y < g",
        [*owned, x >= 0, i < line.total],
        z3.And(y > 0, y < line.workers),
    )


def _races(line: Line) -> Iterator[Lemma]:
    x, y, i, j, k, t, u = z3.Ints("x y i j k t u")
    posted = [*line.sizes, *line.part(x, i, t), z3.Not(line.owns(x, t))]
    yield Lemma(
        "races",
        "one partial tile per worker",
        "x takes iterations of t and u and owns neither: t = u",
        [*posted, *line.part(x, j, u), z3.Not(line.owns(x, u))],
        t == u,
    )
    yield Lemma(
        "races",
        "what is posted is not received",
        "x posts a part of t, owns u and waits for y there: t != u",
        [*posted, line.owns(x, u), *line.part(x, k, u), *line.part(y, j, u), x != y],
        t != u,
    )


def _limits(line: Line) -> Iterator[Lemma]:
    x, y, i, j, t, q, r = z3.Ints("x y i j t q r")
    g, n, p = line.workers, line.iterations, line.share
    of_one_tile = [*line.part(x, i, t), *line.part(y, j, t)]
    yield Lemma(
        LIMIT,
        "few workers share a tile",
        "x < y take iterations of t: (y - x - 1)*p <= n - 2",
        [*line.sizes, *of_one_tile, x < y],
        (y - x - 1) * p <= n - 2,
    )
    divided = q * g + r - line.rule.waves("two-tile", q, r) * g
    yield Lemma(
        LIMIT,
        "two-tile: two at most",
        "T >= g, x and y take iterations of t: y - x <= 1",
        [*line.sizes, q >= 1, r >= 0, r < g, line.tiles == divided, *of_one_tile],
        y - x <= 1,
    )


def prove(seconds: float, rule: WorkRule = RULE) -> Iterator[PropertyResult]:
    """Yield the results of the properties, for every size; Z3 is asked for `seconds` at most."""
    end = perf_counter() + seconds
    every = lemmas(rule)
    for name in dict.fromkeys(lemma.property for lemma in every):
        start = perf_counter()
        of_property = [lemma for lemma in every if lemma.property == name]
        open_ones = [lemma for lemma in of_property if not holds(lemma, end)]
        fault = smallest_fault(rule, name) if open_ones else None
        took = perf_counter() - start
        if fault is not None:
            yield PropertyResult(name, "refuted", took, counterexample=fault)
        elif open_ones:
            reason = f"lemma not proved: {open_ones[0].name}: {open_ones[0].statement}"
            yield PropertyResult(name, "unknown", took, reason=reason)
        else:
            listed = "; ".join(lemma.name for lemma in of_property)
            yield PropertyResult(name, "proved", took, reason=listed)


def holds(lemma: Lemma, end: float) -> bool:
    """Whether Z3 proves a lemma before `end`, a time of `perf_counter`."""
    solver = z3.Solver()
    solver.add(*lemma.given, z3.Not(lemma.claim))
    return bool(check_by(solver, end) == z3.unsat)
