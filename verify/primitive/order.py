"""A claim, and the one that all primitives share: one order on everything that may wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from primepar.schedule.operators import PHASES, tensor_dims
from primepar.schedule.sequence import HOMES
from primepar.verify.primitive import terms
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import SymbolicMap, precedes


@dataclass(frozen=True)
class Claim:
    """`counter` is what a counterexample satisfies; it must have no model.

    A sanity claim's must have one, so that no claim holds for want of cases. Without a `counter`
    there is nothing to ask, and `reason` says why.
    """

    property: str
    sentence: str
    counter: Term | None
    reason: str | None = None
    is_sanity: bool = False
    is_ground: bool = False
    """Whether every other claim stands on it, of whatever property."""
    note: str | None = None
    """What the report says beside *proved*."""


@dataclass(frozen=True)
class Alternatives:
    """Claims that say exactly what moves, and weaker ones that are enough where those fail."""

    exact: tuple[Claim | Alternatives, ...]
    enough: Callable[[], Iterable[Claim | Alternatives]]


def order(symbolic: SymbolicMap) -> Claim:
    """Whatever devices do together has one rank on all of them, and each goes up in rank.

    In a sweep the opening posts and waits come first; then every step posts, waits and finishes
    sums, of both phases where two run in one sweep. Sums that one step finishes rank by the
    digits of their blocks and of the homes where they are reduced.
    """
    radices, axes = symbolic.radices, symbolic.primitive.axis_sides
    most = len(axes) + max(
        sum(len(radices.get(dim, ())) for dim in tensor_dims(tensor)) for tensor in HOMES
    )
    return Claim(
        "deadlock-freedom",
        "every device posts, waits and finishes sums in growing rank, and what devices do "
        "together has the same rank on all of them",
        growing_ranks(symbolic.steps.term, most),
    )


def growing_ranks(steps: Term, most: int) -> Term:
    """What contradicts the order: of phases of so many steps, and of sums told by `most` digits."""
    t, later = terms.Int("t"), terms.Int("t'")
    at_step = terms.And(t >= 0, t < steps)
    wrong = []
    for place in range(len(PHASES)):
        length = 4 * steps + 2
        opening = place * length
        post = opening + 2 + 4 * t
        ranks = [opening, opening + 1, post, post + 1, post + 2, post + 3]
        wrong += [terms.And(at_step, a >= b) for a, b in pairwise(ranks)]
        wrong.append(
            terms.And(at_step, later > t, later < steps, ranks[-1] >= post + 4 * (later - t))
        )
        wrong.append(terms.And(at_step, ranks[-1] >= (place + 1) * length))
    one, other = ([terms.Int(f"digit {i}{tag}") for i in range(most)] for tag in ("", "'"))
    differ = terms.Or(*(a != b for a, b in zip(one, other, strict=True)))
    wrong.append(terms.And(differ, precedes(one, other) == precedes(other, one)))
    return terms.Or(*wrong)
