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
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import z3

from primepar.partition.local_sgd import average_share, next_count
from primepar.verify.primitive.z3_symbols import SymbolSpace, Term
from primepar.verify.report import PropertyResult
from primepar.verify.z3_answer import check_by

Count = Callable[[Any, Any], Any]
"""From the steps since the last average and the period to the same after one more step."""
Share = Callable[[Any], tuple[Any, Any]]
"""From the number of workers to the numerator and the denominator of a coefficient."""
NOTE = "for every number of workers, period, warm-up and number of steps"
PROPERTIES = {
    "average": ("weights",),
    "period": ("range", "progress", "rounds", "every-step", "one-shot", "bytes"),
}
"""Property -> the lemmas that it needs: what an average is, and when the workers average.

They are about the formulas of the method, not about the program that is made of them.
"""


@dataclass(frozen=True)
class PeriodLemma:
    """What holds whenever something is given."""

    name: str
    given: Term
    holds: Term


def prove_local_sgd(seconds: float) -> Iterator[PropertyResult]:
    """Prove `local-sgd` for every size."""
    return prove_period(next_count, seconds)


def prove_period(
    count_after: Count, seconds: float, share_of: Share = average_share
) -> Iterator[PropertyResult]:
    """Prove the lemmas of a count and a share, and yield the properties that rest on them.

    A lemma that fails refutes its properties; the counterexample has its numbers.
    """
    end = perf_counter() + seconds
    every = (*_periods(count_after), *_sums(share_of))
    answers = {lemma.name: _asked(lemma, end) for lemma in every}
    for name, lemmas in PROPERTIES.items():
        took = sum(answers[lemma].seconds for lemma in lemmas)
        wrong = [answers[lemma] for lemma in lemmas if answers[lemma].verdict != "proved"]
        if not wrong:
            yield PropertyResult(name, "proved", took, reason=f"{NOTE}: {', '.join(lemmas)}")
        elif wrong[0].verdict == "unknown":
            yield PropertyResult(name, "unknown", took, reason=wrong[0].reason)
        else:
            yield PropertyResult(name, "refuted", took, counterexample=wrong[0].counterexample)


def _periods(count_after: Count) -> Iterator[PeriodLemma]:
    """The lemmas on when an average follows."""
    space = SymbolSpace(("H",))
    period, (H,) = space.side("H"), space.sides
    c, q, r = z3.Ints("c q r")
    after = space.of(count_after(space.below(c, period), H)).term
    averages = after == 0
    in_range = z3.And(H.term >= 1, c >= 0, c < H.term)
    q_after = q + z3.If(averages, H.term, 0)
    r_after = r + z3.If(averages, 1, 0)
    yield PeriodLemma("range", in_range, z3.And(after >= 0, after < H.term))
    yield PeriodLemma("progress", in_range, q_after + after == q + c + 1)
    yield PeriodLemma("rounds", z3.And(in_range, q == r * H.term), q_after == r_after * H.term)
    yield PeriodLemma("every-step", z3.And(in_range, H.term == 1), averages)
    yield PeriodLemma("one-shot", z3.And(in_range, c + 1 < H.term), z3.Not(averages))


def _sums(share_of: Share) -> Iterator[PeriodLemma]:
    """The lemmas on what an average sends and makes; sums over workers grow by one worker."""
    H, q, r, n, K = z3.Ints("H q r n K")
    P, w, g, rate = z3.Reals("P w g lr")
    total, gradients = z3.Reals("total gradients")
    sent, size = P * z3.ToReal(r), z3.ToReal(H)
    numerator, denominator = (z3.ToReal(z3.IntVal(0) + term) for term in share_of(K))
    share = numerator / denominator
    so_far = z3.And(
        K >= 1, total == z3.ToReal(n) * share * w - rate * share * gradients
    )  # fmt: skip
    grown = total + share * (w - rate * g)
    yield PeriodLemma("bytes", q == r * H, sent * size == P * z3.ToReal(q))
    yield PeriodLemma(
        "weights",
        so_far,
        z3.And(
            grown == z3.ToReal(n + 1) * share * w - rate * share * (gradients + g),
            z3.ToReal(K) * share == 1,
        ),
    )


def _asked(lemma: PeriodLemma, end: float) -> PropertyResult:
    """Ask Z3 for numbers at which a lemma fails."""
    start, solver = perf_counter(), z3.Solver()
    solver.add(lemma.given, z3.Not(lemma.holds))
    answer = check_by(solver, end)
    took = perf_counter() - start
    if answer == z3.unsat:
        return PropertyResult(lemma.name, "proved", took)
    if answer == z3.unknown:
        reason = f"{lemma.name}: Z3 did not decide it within its time limit"
        return PropertyResult(lemma.name, "unknown", took, reason=reason)
    model = solver.model()
    numbers = sorted((str(name).removeprefix("side "), model[name]) for name in model.decls())
    place = ", ".join(f"{name}={number}" for name, number in numbers)
    wrong = f"expected {lemma.name!r}, got formulas without it at {place}"
    return PropertyResult(lemma.name, "refuted", took, counterexample=wrong)
