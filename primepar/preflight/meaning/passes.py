"""Passes: a step reads the gradients of all backward passes since the step before, and no others.

Two micro-batches of a pipeline, of which the second stage zeroes its gradients in between:

    stage 0: backward(y0, g0); backward(y1, g1); step()                # reads both
    stage 1: loss0.backward(); zero_grad(); loss1.backward(); step()   # reads one, gave g0 and g1

Either may be meant, as a discriminator drops gradients and a delayed update reads old ones, so that
both are questions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from primepar.preflight.meaning.evaluate import TermPlace, TermValues
from primepar.preflight.meaning.faults import DataFault
from primepar.preflight.meaning.terms import Gradient, RankTerms


class _Computed(NamedTuple):
    """A gradient as a backward pass computes it: its term, its parameter and its atom."""

    number: int
    parameter: str
    atom: str


class PassQuestions:
    """Asks of the passes of each rank."""

    def __init__(self, values: TermValues, terms: Sequence[RankTerms]) -> None:
        self.values, self.terms = values, terms
        self.computed = [
            [
                _Computed(number, node.parameter, values.of(rank, number)[0].form[0][0][0])
                for number, node in enumerate(of_rank.nodes)
                if isinstance(node, Gradient)
            ]
            for rank, of_rank in enumerate(terms)
        ]

    def wrong(self) -> Iterator[DataFault]:
        """Yield what may be wrong."""
        return chain(self.late(), self.dropped())

    def late(self) -> Iterator[DataFault]:
        """Yield gradients that a step leaves out, and that are in the sum of a later one."""
        for rank, of_rank in enumerate(self.terms):
            last = {one.atom: one.number for one in self.computed[rank]}
            read: dict[str, tuple[int, set[str]]] = {}
            for claim in of_rank.claims:
                end, before = read.get(claim.name, (0, set()))
                atoms = self.values.origins_of(self.values.of(rank, claim.gradient))
                read[claim.name] = claim.gradient, before | atoms
                if any(last.get(atom, end) < end for atom in atoms - before):
                    problem = (
                        f"expected gradients that were computed since step {claim.step}, got one "
                        f"that step {claim.step} has left out: reduce what is accumulated in the "
                        "last backward pass before each step, unless updates are meant to be late"
                    )
                    yield DataFault.of_gradient(rank, claim, problem, False)
                    return

    def dropped(self) -> Iterator[DataFault]:
        """Yield gradients of a pass that no step reads, though others use what it gave to them.

        The step reads those of another such pass: a discriminator drops all of them.
        """
        for rank, of_rank in enumerate(self.terms):
            ends = [end for _, end in of_rank.backward]
            given: dict[int, list[int]] = {}
            for number in of_rank.cotangents:
                given.setdefault(bisect_right(ends, number), []).append(number)
            made: dict[str, list[_Computed]] = {}
            for one in self.computed[rank] if given else ():
                if bisect_right(ends, one.number) in given:
                    made.setdefault(one.parameter, []).append(one)
            read: dict[str, int] = {}
            for claim in of_rank.claims:
                since, read[claim.name] = read.get(claim.name, -1), claim.gradient
                atoms = self.values.origins_of(self.values.of(rank, claim.gradient))
                every = [
                    one for one in made.get(claim.name, ()) if since < one.number <= claim.gradient
                ]
                out = [one.number for one in every if one.atom not in atoms]
                gave = [place for one in out for place in given[bisect_right(ends, one)]]
                if len(out) < len(every) and any(TermPlace(rank, one) in self.used for one in gave):
                    problem = (
                        "expected the gradients of all backward passes since the step before "
                        f"whose results other ranks use, got those of {len(every) - len(out)} of "
                        f"{len(every)}: let all stages accumulate over the same micro-batches"
                    )
                    yield DataFault.of_gradient(rank, claim, problem, False)
                    return

    @cached_property
    def used(self) -> set[TermPlace]:
        """All that gradients which optimizers read are computed from."""
        return self.values.cone(
            TermPlace(rank, claim.gradient)
            for rank, of_rank in enumerate(self.terms)
            for claim in of_rank.claims
        )
