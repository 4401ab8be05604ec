"""Memory of a primitive for every side: what is alive at most, counted and compared with `held`.

At each moment the blocks of a tensor that are alive are a union of a few sets, each of which is
given by digits. How many there are depends on which of the sets have a block in common. Without
asking, all are taken to be apart; only where that is too many Z3 says which cases there are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import prod

from primepar.errors import SymbolicError
from primepar.schedule.operators import PHASES, PRODUCTS
from primepar.schedule.primitive import ANY
from primepar.verify.deadline import UndecidedError
from primepar.verify.primitive import terms
from primepar.verify.primitive.alive import Alive, Life, Moment, finished
from primepar.verify.primitive.amount import Amount, broken, doubtful
from primepar.verify.primitive.fit import Sample
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.order import Claim
from primepar.verify.primitive.polynomial import Polynomial, Range
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, SymbolicMap, overlaps
from primepar.verify.primitive.traffic import block_size, blocks, formula

NAME = "memory"
LONGEST_ALONE = 3
"""A side is looked at on its own up to this length."""
Common = frozenset[frozenset[int]]
"""Pairs of sets that have a block in common, by their places in a list."""
Cases = Callable[[Term, list[Term]], Iterator[tuple[bool, ...]]]
"""Which truths several conditions can have at once, where another one holds."""


def memory(symbolic: SymbolicMap, seen: list[Sample], cases: Cases) -> Iterator[Claim]:
    """All claims about what a primitive holds; none if it has no formula."""
    sentence = "as much is alive as the formula says, at most"
    try:
        told = formula(symbolic, "held")
        if told is not None:
            yield from _Memory(symbolic, Life(symbolic, seen), told, cases).claims()
    except (FitError, SymbolicError, UndecidedError) as error:
        yield Claim(NAME, sentence, None, str(error))


@dataclass(frozen=True)
class Pairs:
    """The sets of one moment, and the conditions under which two of them have a block in common."""

    symbolic: SymbolicMap
    moment: Moment

    def conditions(self) -> dict[tuple[int, int, int], Term]:
        """(tensor, set, set) -> the condition, where it is one."""
        return {
            (place, *pair): overlaps(*(alive.boxes[at] for at in pair))
            for place, alive in enumerate(self.moment.alive)
            for pair in combinations(range(len(alive.boxes)), 2)
            if not _is_one(*(alive.boxes[at] for at in pair))
        }

    def total(self, together: frozenset[tuple[int, int, int]]) -> Amount:
        """Elements that are alive where these pairs have blocks in common, and no others."""
        counts: dict[str, Polynomial] = {}
        for place, alive in enumerate(self.moment.alive):
            pairs = combinations(range(len(alive.boxes)), 2)
            common = frozenset(
                pair
                for pair in pairs
                if (place, *pair) in together or _is_one(*(alive.boxes[at] for at in pair))
            )
            tensor, count = alive.tensor.removeprefix("d"), self._count(alive, common)
            counts[tensor] = counts[tensor] + count if tensor in counts else count
        total = Amount.of(0)
        for tensor, count in counts.items():
            size = self.symbolic.once(
                f"size of {tensor}", partial(block_size, self.symbolic, tensor)
            )
            total = total + Amount.whole(count) * size
        return total

    def _count(self, alive: Alive, common: frozenset[tuple[int, int]]) -> Polynomial:
        every = range(len(alive.boxes))
        count = alive.more + self._union(alive, tuple(every), common)
        if alive.arriving:
            places = tuple(len(every) - 2 + at for at in (0, 1))
            count += self._union(alive, places, common)
            count -= self.symbolic.size(alive.boxes[places[1]])
        return count

    def _union(
        self, alive: Alive, places: tuple[int, ...], common: frozenset[tuple[int, int]]
    ) -> Polynomial:
        """By inclusion and exclusion: sets of which any two have a block in common all have one."""
        count = Polynomial.of(0)
        for several in range(1, len(places) + 1):
            for some in combinations(places, several):
                if all(pair in common for pair in combinations(some, 2)):
                    met = _met([alive.boxes[at] for at in some])
                    count += self.symbolic.size(met).times(1 if several % 2 else -1)
        return count


def _is_one(one: Block, other: Block) -> bool:
    """Whether two sets have a block in common whatever the device, the step and the sides."""
    pairs = [pair for dim in one for pair in zip(one[dim], other[dim], strict=False)]
    return all(a.eq(b) for a, b in pairs if a is not ANY and b is not ANY)


def _met(boxes: list[Block]) -> Block:
    """The digits of the blocks that all of these have in common."""
    met: Block = {}
    for dim in boxes[0]:
        most = max(len(box[dim]) for box in boxes)
        rows = [(*box[dim], *(ANY,) * (most - len(box[dim]))) for box in boxes]
        met[dim] = tuple(
            next((digit for digit in column if digit is not ANY), ANY)
            for column in zip(*rows, strict=True)
        )
    return met


@dataclass(frozen=True)
class _Memory:
    symbolic: SymbolicMap
    life: Life
    told: Amount
    cases: Cases

    def claims(self) -> Iterator[Claim]:
        """At no moment is more alive; and what these counts lean on."""
        note = copies(self.symbolic)
        for place, moment in enumerate(self.life.moments()):
            pairs = Pairs(self.symbolic, moment)
            sentence = f"{moment.text}: at most as much is alive as the formula says"
            most = self._room(pairs, frozenset())
            wrong = next(self._broken(pairs, moment.known, most), terms.FALSE)
            yield Claim(NAME, sentence, wrong, note=None if place else note)
        if self.symbolic.homes:
            for phase in PHASES:
                if self.life.kind(phase) == "done":
                    yield Claim(NAME, *finished(self.life, phase))
            if len(self.life.sweeps) == len(PHASES):
                yield self._rests()

    def _rests(self) -> Claim:
        symbolic = self.symbolic
        own = symbolic.block("backward", "dO", symbolic.here, symbolic.now)
        at_step = terms.And(symbolic.now >= 0, symbolic.now < symbolic.steps.term)
        contains = symbolic.contains(symbolic.home("dO", symbolic.here), own)
        counter = terms.And(symbolic.in_mesh(symbolic.here), at_step, terms.Not(contains))
        return Claim(NAME, "backward, dO: it stays at home", counter)

    def _broken(self, pairs: Pairs, known: Range, most: Amount) -> Iterator[Term]:
        """What a counterexample satisfies, side by side as far as that helps.

        `most` is what the formula leaves where all sets are apart. Short sides are looked at on
        their own: first those that the formula asks of, then, where that is not enough, others.
        """
        if not doubtful(most, operator.ge, known):
            return
        during = terms.And(pairs.moment.during, known.term())
        if next(self.cases(during, []), None) is None:
            return
        names = [f"side {name}" for name in self.symbolic.space.names]
        short = [
            name
            for name in names
            if name not in known.only and known.least.get(name, 1) < LONGEST_ALONE
        ]
        told = frozenset[str]().union(*(case.conditions for case in self.told.cases))
        if told.isdisjoint(short):
            wrong = list(self._counterexamples(pairs, known, during))
            if not wrong or not short:
                yield from wrong
                return
        name = min(short, key=lambda side: side not in told)
        least = known.least.get(name, 1)
        others = {one: number for one, number in known.least.items() if one != name}
        yield from self._broken(pairs, Range(others, {**known.only, name: least}), most)
        yield from self._broken(pairs, Range({**others, name: least + 1}, known.only), most)

    def _counterexamples(self, pairs: Pairs, known: Range, during: Term) -> Iterator[Term]:
        conditions = pairs.conditions()
        for truths in self.cases(during, list(conditions.values())):
            told = list(zip(conditions, truths, strict=True))
            room = self._room(pairs, frozenset(pair for pair, one in told if one))
            wrong = broken(room, operator.ge, known)
            if not terms.FALSE.eq(wrong):
                case = [term if one else terms.Not(term)
                        for term, one in zip(conditions.values(), truths, strict=True)]  # fmt: skip
                yield terms.And(during, *case, wrong)

    def _room(self, pairs: Pairs, together: frozenset[tuple[int, int, int]]) -> Amount:
        return self.told - pairs.total(together)


def copies(symbolic: SymbolicMap) -> str:
    """How often each of I, W and O is there at rest, `copies at rest: I 1, W d, O 1`."""
    parts = []
    for phase, tensor in (("forward", "I"), ("forward", "W"), ("forward", "O")):
        step = symbolic.steps.term - 1 if tensor == PRODUCTS[phase].writes else terms.IntVal(0)
        at_rest = symbolic.block(phase, tensor, symbolic.here, step)
        if symbolic.homes:
            at_rest = symbolic.home(tensor, symbolic.here)
        every = prod(map(symbolic.space.polynomial, symbolic.lengths), start=Polynomial.of(1))
        parts.append(f"{tensor} {(every * symbolic.size(at_rest)).per(blocks(symbolic, tensor))}")
    return "copies at rest: " + ", ".join(parts)
