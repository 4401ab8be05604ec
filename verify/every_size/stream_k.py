"""Stream-K for every number of workers, tiles and iterations: lemmas that Z3 proves.

The formulas are those that the program is built from (`WorkRule`), evaluated on symbols. Products
of two sizes, such as worker times share, stay products: each question has few of them, and Z3
decides it in milliseconds. How the lemmas imply the properties is argued in docs/stream-k.md.
If a lemma fails, the smallest sizes that break its property are searched with plain integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import z3

from primepar.partition.work_ranges import RULE, WorkRule
from primepar.verify.every_size.lemmas import Lemma, Variable, results
from primepar.verify.every_size.stream_k_faults import LIMIT, smallest_fault
from primepar.verify.primitive.z3_symbols import Term
from primepar.verify.report import PropertyResult


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
        """What makes the share the rounded quotient, besides the ranges of the sizes."""
        g, p = self.workers, self.share
        # p is T n / g rounded up: 7 iterations on 3 workers are p = 3, as 3 * 3 >= 7 > 3 * 2.
        return [g * p >= self.total, g * (p - 1) < self.total]

    def lemma(
        self, property_: str, name: str, statement: str, given: list[Term], claim: Term
    ) -> Lemma:
        """A lemma about a line of any size."""
        sizes = (Variable(self.workers, 1), Variable(self.tiles, 1), Variable(self.iterations, 1))
        return Lemma(name, (property_,), sizes, claim, given, statement)

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
    yield line.lemma(
        "coverage",
        "every iteration has a worker",
        "$0 <= i < T n$, $i = x p + r$, $0 <= r < p$: $x$ is a worker and takes $i$",
        # x and r are quotient and remainder of i by p, given as an equation: Z3 needs no division.
        [*line.sizes, i >= 0, i < line.total, i == x * p + r, r >= 0, r < p],
        z3.And(x >= 0, x < g, line.takes(x, i)),
    )
    yield line.lemma(
        "coverage",
        "no iteration has two workers",
        "$x$ and $y$ take $i$: $x = y$",
        [*line.sizes, line.takes(x, i), line.takes(y, i)],
        x == y,
    )
    yield from _whole_tiles(line)


def _whole_tiles(line: Line) -> Iterator[Lemma]:
    """A wave of whole tiles has one for each worker, and the rest is on the line."""
    rule, g, (v, w, x, y) = line.rule, line.workers, z3.Ints("v w x y")
    one, other = rule.whole_tile(x, v, g), rule.whole_tile(y, w, g)
    yield line.lemma(
        "coverage",
        "no whole tile has two workers",
        "$v g + x = w g + y$, $0 <= x, y < g$: $x = y$ and $v = w$",
        # v g + x is a number of two digits in base g, so the digits are unique.
        [x >= 0, x < g, y >= 0, y < g, one == other],
        z3.And(x == y, v == w),
    )
    yield line.lemma(
        "coverage",
        "every whole tile has a worker",
        "$0 <= x < g$: $x$ has tile $v g + x$ of the whole tiles, in wave $v$",
        [x >= 0, x < g, v >= 0],
        rule.whole_tile(x, v, g) == v * g + x,
    )
    tiles, whole, rest = z3.Ints("tiles q r")
    sizes = [whole >= 0, rest >= 0, rest < g, tiles == whole * g + rest]
    # T = q g + r: one-tile divides the last r tiles, two-tile the last g + r, data-parallel none.
    dealt = {variant: rule.waves(variant, whole, rest) * g for variant in ("one-tile", "two-tile")}
    alone = rule.waves("data-parallel", whole, rest) * g
    yield line.lemma(
        "coverage",
        "whole waves leave the others",
        "$T = q g + r$, $0 <= r < g$, $w$ waves: $w g <= T$ under one-tile and two-tile, "
        "$T <= w g < T + g$ under data-parallel",
        sizes,
        z3.And(*(part >= 0 for part in dealt.values()), *(part <= tiles for part in dealt.values()),
               tiles <= alone, alone < tiles + g),
    )  # fmt: skip


def _completion(line: Line) -> Iterator[Lemma]:
    x, y, z, i, t, r = z3.Ints("x y z i t r")
    decisive, p = line.rule.decisive(t, line.iterations), line.share
    yield line.lemma(
        "completion",
        "every tile has an owner",
        "$0 <= t < T$, $d$ decides for $t$, $d = x p + r$, $0 <= r < p$: $x$ is a worker, takes "
        "$d$ and owns $t$",
        [*line.sizes, t >= 0, t < line.tiles, decisive == x * p + r, r >= 0, r < p],
        z3.And(x >= 0, x < line.workers, line.of_tile(decisive, t), line.owns(x, t)),
    )
    yield line.lemma(
        "completion",
        "no tile has two owners",
        "$x$ and $y$ own $t$: $x = y$",
        [*line.sizes, line.owns(x, t), line.owns(y, t)],
        x == y,
    )
    yield line.lemma(
        "completion",
        "no worker is skipped",
        # So the owner knows whom it waits for: all workers from x + 1 up to the last one of t.
        "$x$ owns $t$, $y > x$ takes an iteration of $t$, $x < z < y$: $z$ takes iterations of "
        "$t$ too",
        [*line.sizes, line.owns(x, t), *line.part(y, i, t), x < z, z < y],
        z3.And(*line.part(z, line.rule.begin(z, line.share), t)),
    )


def _waiting(line: Line) -> Iterator[Lemma]:
    x, y, i, j, t, u = z3.Ints("x y i j t u")
    # Waits go to later workers, so a cycle of waits would have to come back to an earlier one.
    owned = [*line.sizes, line.owns(x, t), *line.part(y, i, t), x != y]
    yield line.lemma(
        "deadlock-freedom",
        "waits are for later workers",
        "$x$ owns $t$, $y$ takes an iteration of $t$, $x != y$: $y > x$",
        owned,
        y > x,
    )
    yield line.lemma(
        "deadlock-freedom",
        "a worker waits last",
        "$x$ owns $t$ and waits for $y$, $x$ takes an iteration of $u$: $u <= t$",
        [*owned, *line.part(x, j, u)],
        u <= t,
    )
    yield line.lemma(
        "deadlock-freedom",
        "a worker posts first",
        # The part for another owner is computed before anything is waited for: whoever waits for x
        # gets it.
        "$x$ does not own $t$ but takes an iteration of it, and one of $u$: $u >= t$",
        [*line.sizes, *line.part(x, i, t), z3.Not(line.owns(x, t)), *line.part(x, j, u)],
        u >= t,
    )
    yield line.lemma(
        "deadlock-freedom",
        "times of events rise",
        "$x$ owns $t$, $y$ takes an iteration of $t$, $x != y$: $0 < y < g$",
        [*owned, x >= 0, i < line.total],
        z3.And(y > 0, y < line.workers),
    )


def _races(line: Line) -> Iterator[Lemma]:
    x, y, i, j, k, t, u = z3.Ints("x y i j k t u")
    # One tile is posted by a worker at the most, and it receives none of that tile: two buffers are
    # enough.
    posted = [*line.sizes, *line.part(x, i, t), z3.Not(line.owns(x, t))]
    yield line.lemma(
        "races",
        "one partial tile per worker",
        "$x$ takes iterations of $t$ and $u$ and owns neither: $t = u$",
        [*posted, *line.part(x, j, u), z3.Not(line.owns(x, u))],
        t == u,
    )
    yield line.lemma(
        "races",
        "what is posted is not received",
        "$x$ posts a part of $t$, owns $u$ and waits for $y$ there: $t != u$",
        [*posted, line.owns(x, u), *line.part(x, k, u), *line.part(y, j, u), x != y],
        t != u,
    )


def _limits(line: Line) -> Iterator[Lemma]:
    x, y, i, j, t, q, r = z3.Ints("x y i j t q r")
    g, n, p = line.workers, line.iterations, line.share
    of_one_tile = [*line.part(x, i, t), *line.part(y, j, t)]
    yield line.lemma(
        LIMIT,
        "few workers share a tile",
        "$x < y$ take iterations of $t$: $(y - x - 1) p <= n - 2$",
        [*line.sizes, *of_one_tile, x < y],
        (y - x - 1) * p <= n - 2,
    )
    divided = q * g + r - line.rule.waves("two-tile", q, r) * g
    yield line.lemma(
        LIMIT,
        "two-tile: two at most",
        "$T >= g$, $x$ and $y$ take iterations of $t$: $y - x <= 1$",
        [*line.sizes, q >= 1, r >= 0, r < g, line.tiles == divided, *of_one_tile],
        y - x <= 1,
    )


def prove(seconds: float, rule: WorkRule = RULE) -> Iterator[PropertyResult]:
    """Yield the results of the properties, for every size; Z3 is asked for `seconds` at most."""
    every = lemmas(rule)
    properties = dict.fromkeys(name for lemma in every for name in lemma.properties)
    return results(
        every, seconds, properties, lambda _, names: "; ".join(names), partial(smallest_fault, rule)
    )
