"""Proves local SGD for every number of workers, every period, any warm-up and any number of steps.

A worker counts its local steps since the last average. `next_count` is the only place where the
period H is read, and it takes nothing but the count. Let u be the local steps done so far, with
u = q + c: q is the number of steps up to the last average, and c the count. An average adds H to q
and 1 to the rounds r. The lemmas, for every H >= 1:

    range      0 <= c < H stays true
    progress   q + c grows by one in every step
    rounds     q = r H stays true
    every-step with H = 1 an average follows every step
    one-shot   the first average is not before step H
    bytes      an average sends P; after r averages it is P r, and H times that is P q
    weights    after n workers the sum of 1/K (w - lr g_k) is (n/K) w - lr (1/K) sum of g_k

Why they are enough: all workers begin with c = q = r = 0 after the warm-up. By `range`, `progress`
and `rounds`, c is the remainder of u divided by H and r the quotient. So the averages are after the
steps t with (t - S) % H = H - 1, and one more at the end of a run that H does not divide. They are
the same steps on all workers, as `next_count` takes nothing of a worker. By `weights` with n = K
the mean after one step is w less lr times the mean gradient: H = 1 is synchronous SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from primepar.partition.local_sgd import average_share, next_count
from primepar.verify.every_size.lemmas import Lemma, Variable, results, stated_for
from primepar.verify.primitive.z3_symbols import SymbolSpace
from primepar.verify.report import PropertyResult

Count = Callable[[Any, Any], Any]
"""From the steps since the last average and the period to the same after one more step."""
Share = Callable[[Any], tuple[Any, Any]]
"""From the number of workers to the numerator and the denominator of a coefficient."""
PROPERTIES = ("average", "period")
"""What an average is, and when the workers average.

They are about the formulas of the method, not about the program that is made of them.
"""


def prove_local_sgd(seconds: float) -> Iterator[PropertyResult]:
    """Prove `local-sgd` for every size."""
    return prove_period(next_count, seconds)


def prove_period(
    count_after: Count, seconds: float, share_of: Share = average_share
) -> Iterator[PropertyResult]:
    """Prove the lemmas of a count and a share, and yield the properties that rest on them.

    A lemma that fails refutes its properties; the counterexample has its numbers.
    """
    lemmas = (*period_lemmas(count_after), *share_lemmas(share_of))
    reason = stated_for("number of workers, period, warm-up and number of steps")
    return results(lemmas, seconds, PROPERTIES, reason)


def period_lemmas(count_after: Count) -> list[Lemma]:
    """The lemmas on when an average follows."""
    space = SymbolSpace(("H",))
    c, q, r = z3.Ints("c q r")
    (period,) = space.sides
    H, after = period.term, space.of(count_after(space.below(c, space.side("H")), period)).term
    # The count starts again exactly where an average follows; it is read from nothing else.
    averages = after == 0
    # An average adds the H steps since the one before. In between neither changes.
    q_after, r_after = q + z3.If(averages, H, 0), r + z3.If(averages, 1, 0)
    over = (Variable.side("H"), Variable(c, 0, H), Variable(q), Variable(r))
    about = ("period",)
    return [
        Lemma("range", about, over, z3.And(after >= 0, after < H)),
        Lemma("progress", about, over, q_after + after == q + c + 1),
        Lemma("rounds", about, over, q_after == r_after * H, [q == r * H]),
        Lemma("every-step", about, over, averages, [H == 1]),
        Lemma("one-shot", about, over, z3.Not(averages), [c + 1 < H]),
    ]


def share_lemmas(share_of: Share) -> list[Lemma]:
    """The lemmas on what an average sends and makes; sums over workers grow by one worker."""
    H, q, r, n, K = z3.Ints("H q r n K")
    P, w, g, rate = z3.Reals("P w g lr")
    total, gradients = z3.Reals("total gradients")
    numerator, denominator = (z3.ToReal(z3.IntVal(0) + term) for term in share_of(K))
    share = numerator / denominator
    # Induction over the workers: what holds of the first n, with the term of one more, is the claim
    # of n + 1. So no sum over K workers is needed, which Z3 could not write.
    grown = total + share * (w - rate * g)
    return [
        Lemma(
            "bytes", ("period",), tuple(map(Variable, (H, q, r, P))),
            P * z3.ToReal(r) * z3.ToReal(H) == P * z3.ToReal(q), [q == r * H],
        ),
        Lemma(
            "weights", ("average",),
            (Variable(K, 1), *map(Variable, (n, w, g, rate, total, gradients))),
            z3.And(
                grown == z3.ToReal(n + 1) * share * w - rate * share * (gradients + g),
                z3.ToReal(K) * share == 1,
            ),
            [total == z3.ToReal(n) * share * w - rate * share * gradients],
        ),
    ]  # fmt: skip
