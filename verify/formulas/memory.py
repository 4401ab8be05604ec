"""Memory of a primitive for every side: peaks of live blocks, compared with the formula `held`.

At each moment the live blocks of a tensor are a union of a few sets, each given by digits. Their
number depends on which of the sets overlap. At first all are assumed to be disjoint, which counts
too many. Only if that exceeds the formula, Z3 enumerates which overlaps are possible. For example,
the stationary method has I resident at `N=(r + c) % s` and uses `N=(r + c + t) % s`. These are one
block at step 0, and two blocks at every other step.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from primepar.schedule.primitive import ANY
from primepar.verify.formulas.block_sets import Block, BlockSets, overlap
from primepar.verify.formulas.liveness import Life, Moment
from primepar.verify.formulas.polynomial import Polynomial, Range, cancelled
from primepar.verify.formulas.symbolic_amount import ConditionalRatio, broken, doubtful
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import Term

LONGEST_ALONE = 3
"""Sides below this length are separate cases."""
Pair = tuple[int, int, int]
"""(index of a tensor, indices of two of its boxes)."""


def counters(blocks: BlockSets, held: list[ConditionalRatio]) -> Iterator[tuple[str, Term]]:
    """Yield claims, each with the condition that a counterexample satisfies."""
    for moment in Life(blocks).moments():
        text = f"{moment.text}: the live elements are at most those of the formula"
        yield text, Count(blocks, moment).beyond(held)


@dataclass(frozen=True)
class Count:
    """The number of live elements at one moment."""

    blocks: BlockSets
    moment: Moment

    def beyond(self, held: list[ConditionalRatio]) -> Term:
        """The condition of a counterexample to: the formula is at least the live elements."""
        return terms.Or(*self._broken(held, self.moment.known))

    def _broken(self, held: list[ConditionalRatio], known: Range) -> list[Term]:
        """Conditions of counterexamples; short sides are separate cases only if that helps."""
        always = frozenset(pair for pair, term in self.conditions.items() if terms.TRUE.eq(term))
        during = terms.And(self.during, known.term())
        if not doubtful(held, operator.ge, self.total(always), known) or self.blocks.is_never(
            during
        ):
            return []
        short = [name for name in map("side {}".format, self.blocks.space.names)
                 if name not in known.only and known.lowest(name) < LONGEST_ALONE]  # fmt: skip
        asked = {name for case in held for fact in case.facts for name in fact.polynomial.names}
        chosen = [name for name in short if name in asked]
        if not chosen:
            wrong = list(self._cases(held, known, during))
            if not wrong or not short:
                return wrong
        parts = known.split((chosen or short)[0])
        return [wrong for part in parts for wrong in self._broken(held, part)]

    def _cases(self, held: list[ConditionalRatio], known: Range, during: Term) -> Iterator[Term]:
        for truths in self.blocks.cases(during, list(self.conditions.values())):
            case = dict(zip(self.conditions, truths, strict=True))
            overlapping = frozenset(pair for pair, is_true in case.items() if is_true)
            wrong = doubtful(held, operator.ge, self.total(overlapping), known)
            if wrong:
                facts = (term if case[pair] else terms.Not(term)
                         for pair, term in self.conditions.items())  # fmt: skip
                yield terms.And(during, *facts, broken(wrong, known))

    @cached_property
    def during(self) -> Term:
        """The condition on devices and steps of the moment."""
        return self.blocks.term(self.moment.during)

    @cached_property
    def conditions(self) -> dict[Pair, Term]:
        """Two boxes -> the condition under which they share a block."""
        return {
            (place, first, second): self.blocks.term(overlap(live.boxes[first], live.boxes[second]))
            for place, live in enumerate(self.moment.live)
            for first, second in combinations(range(len(live.boxes)), 2)
        }

    def total(self, overlapping: frozenset[Pair]) -> Polynomial:
        """Live elements where exactly these boxes overlap."""
        total = Polynomial.of(0)
        for place, live in enumerate(self.moment.live):
            pairs = {(first, second) for index, first, second in overlapping if index == place}
            count, boxes = live.more, dict(enumerate(live.boxes))
            if live.arrive:
                both = dict(list(boxes.items())[-2:])
                count += self._union(both, pairs) - self.blocks.size(live.boxes[-1])
            count += self._union(boxes, pairs)
            total += count * self.blocks.elements(live.tensor)
        return total

    def _union(self, boxes: dict[int, Block], pairs: set[tuple[int, int]]) -> Polynomial:
        """Size of a union by inclusion and exclusion: boxes that overlap in pairs share a block."""
        count = Polynomial.of(0)
        for several in range(1, len(boxes) + 1):
            for some in combinations(boxes, several):
                if pairs.issuperset(combinations(some, 2)):
                    size = self.blocks.size(_common([boxes[index] for index in some]))
                    count += size * (1 if several % 2 else -1)
        return count


def _common(boxes: Sequence[Block]) -> Block:
    """The intersection of boxes that overlap."""
    return {
        dim: tuple(next((digit for digit in column if digit is not ANY), ANY)
                   for column in zip(*(box[dim] for box in boxes), strict=True))
        for dim in boxes[0]
    }  # fmt: skip


def copies(blocks: BlockSets) -> str:
    """Resident copies of each of I, W and O, as text: `resident copies: I 1, W d, O 1`."""
    parts = []
    for tensor, step in (("I", 0), ("W", 0), ("O", blocks.last)):
        box = blocks.block("forward", tensor, blocks.here, step)
        box = blocks.home(tensor) if blocks.homes else box
        every = blocks.product(*blocks.lengths.values()) * blocks.size(box)
        top, bottom = (number.text() for number in cancelled(every, blocks.number(tensor)))
        parts.append(f"{tensor} {top}" + f" / {bottom}" * (bottom != "1"))
    return "resident copies: " + ", ".join(parts)
