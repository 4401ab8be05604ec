"""Memory of a primitive for every side: what is alive at most, counted and compared with `held`.

At each moment the blocks of a tensor that are alive are a union of a few sets, each of which is
given by digits. How many there are depends on which of the sets have a block in common. Without
asking, all are taken to be apart; only where that is too many Z3 says which cases there are.
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
"""A side is looked at on its own below this length."""
Pair = tuple[int, int, int]
"""Two boxes of a tensor, by their places."""


def counters(blocks: BlockSets, held: list[ConditionalRatio]) -> Iterator[tuple[str, Term]]:
    """Claims, each with what a counterexample satisfies."""
    for moment in Life(blocks).moments():
        text = f"{moment.text}: at most as much is alive as the formula says"
        yield text, Count(blocks, moment).beyond(held)


@dataclass(frozen=True)
class Count:
    """How much is alive at one moment."""

    blocks: BlockSets
    moment: Moment

    def beyond(self, held: list[ConditionalRatio]) -> Term:
        """What a counterexample satisfies to: the formula gives as much as is alive, or more."""
        return terms.Or(*self._broken(held, self.moment.known))

    def _broken(self, held: list[ConditionalRatio], known: Range) -> list[Term]:
        """Counterexamples, short sides on their own only where that helps."""
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
            met = frozenset(pair for pair, one in case.items() if one)
            wrong = doubtful(held, operator.ge, self.total(met), known)
            if wrong:
                facts = (term if case[pair] else terms.Not(term)
                         for pair, term in self.conditions.items())  # fmt: skip
                yield terms.And(during, *facts, broken(wrong, known))

    @cached_property
    def during(self) -> Term:
        """Which devices and steps it is about."""
        return self.blocks.term(self.moment.during)

    @cached_property
    def conditions(self) -> dict[Pair, Term]:
        """Two boxes -> the condition under which they have a block in common."""
        return {
            (place, one, other): self.blocks.term(overlap(alive.boxes[one], alive.boxes[other]))
            for place, alive in enumerate(self.moment.alive)
            for one, other in combinations(range(len(alive.boxes)), 2)
        }

    def total(self, met: frozenset[Pair]) -> Polynomial:
        """Elements that are alive where these boxes have blocks in common, and no others."""
        total = Polynomial.of(0)
        for place, alive in enumerate(self.moment.alive):
            pairs = {(one, other) for own, one, other in met if own == place}
            count, boxes = alive.more, dict(enumerate(alive.boxes))
            if alive.arrive:
                both = dict(list(boxes.items())[-2:])
                count += self._union(both, pairs) - self.blocks.size(alive.boxes[-1])
            count += self._union(boxes, pairs)
            total += count * self.blocks.elements(alive.tensor)
        return total

    def _union(self, boxes: dict[int, Block], pairs: set[tuple[int, int]]) -> Polynomial:
        """By inclusion and exclusion: boxes of which any two have a common block all have one."""
        count = Polynomial.of(0)
        for several in range(1, len(boxes) + 1):
            for some in combinations(boxes, several):
                if pairs.issuperset(combinations(some, 2)):
                    size = self.blocks.size(_common([boxes[at] for at in some]))
                    count += size * (1 if several % 2 else -1)
        return count


def _common(boxes: Sequence[Block]) -> Block:
    """The digits of the blocks that all of these have in common."""
    return {
        dim: tuple(next((digit for digit in column if digit is not ANY), ANY)
                   for column in zip(*(box[dim] for box in boxes), strict=True))
        for dim in boxes[0]
    }  # fmt: skip


def copies(blocks: BlockSets) -> str:
    """How often each of I, W and O is there at rest, `copies at rest: I 1, W d, O 1`."""
    parts = []
    for tensor, step in (("I", 0), ("W", 0), ("O", blocks.last)):
        box = blocks.block("forward", tensor, blocks.here, step)
        box = blocks.home(tensor) if blocks.homes else box
        every = blocks.product(*blocks.lengths.values()) * blocks.size(box)
        top, bottom = (each.text() for each in cancelled(every, blocks.number(tensor)))
        parts.append(f"{tensor} {top}" + f" / {bottom}" * (bottom != "1"))
    return "copies at rest: " + ", ".join(parts)
