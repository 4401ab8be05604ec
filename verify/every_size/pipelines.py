"""Proves GPipe and 1F1B for all numbers of stages and micro-batches at once.

The places of the actions are formulas, of which the library makes the orders of the stages
(`primepar.partition.pipeline.actions`). Z3 decides claims about them: each action once, messages
in one order, no circular wait, the most stashes, the bubble. docs/pipelines.md has the argument
that joins them to the program of every size.

A claim that does not hold proves nothing. Then the smallest pipeline that breaks the property is
searched; without one the property is unknown, with the claim and Z3's numbers as the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import z3

from primepar.partition.pipeline.actions import CLOSED_FORMS, ClosedForm, ScheduleName
from primepar.schedule.deadline import UnansweredError, deadline
from primepar.verify.every_size.pipeline_claims import (
    BUBBLE,
    COVERAGE,
    DEADLOCK,
    DOMAIN,
    ORDER,
    STASHES,
    M,
    PipelineClaims,
    SizeClaim,
    k,
    p,
    s,
)
from primepar.verify.every_size.pipeline_sizes import smallest_fault
from primepar.verify.report import PropertyResult, Verdict
from primepar.verify.z3_answer import check_by

NOTES = {
    COVERAGE: "every stage has F, B and W of each micro-batch once",
    ORDER: "two stages use messages in the order in which they are sent",
    DEADLOCK: "the start of every action is after all that it waits for",
    STASHES: "the most that a stage keeps is the formula",
    BUBBLE: "the earliest starts give the formula",
}
"""Property -> what its proof is of."""


def prove_pipeline(
    schedule: ScheduleName, seconds: float, form: ClosedForm | None = None
) -> Iterator[PropertyResult]:
    """Decide all properties within `seconds`; `form` is another one than that of the schedule."""
    form = form or CLOSED_FORMS[schedule]
    claims = PipelineClaims(schedule, form).all
    end = perf_counter() + seconds
    for name in NOTES:
        start = perf_counter()
        wrong = [claim for claim in claims if claim.property == name]
        broken = next(filter(None, (_broken(claim, end) for claim in wrong)), None)
        if broken is None:
            yield PropertyResult(name, "proved", perf_counter() - start, reason=NOTES[name])
            continue
        try:
            with deadline(max(end - perf_counter(), 1e-3)):
                fault = smallest_fault(name, schedule, form)
        except UnansweredError:
            fault = None
        verdict: Verdict = "unknown" if fault is None else "refuted"
        reason = broken if fault is None else None
        yield PropertyResult(name, verdict, perf_counter() - start, fault, reason)


def _broken(claim: SizeClaim, end: float) -> str | None:
    """Why a claim is not proved; None if it is."""
    solver = z3.Solver()
    inside = z3.And(k >= 0, k < M)
    if claim.exists:
        solver.add(p >= 1, M >= 1, s >= 0, s < p)
        solver.add(z3.ForAll([k], z3.Implies(inside, z3.Not(claim.then))))
    else:
        solver.add(DOMAIN, z3.Not(claim.then))
    answer = check_by(solver, end)
    if answer == z3.unsat:
        return None
    if answer == z3.unknown:
        return f"no answer in time whether {claim.sentence}"
    return f"expected that {claim.sentence}, got none such at {_numbers(solver.model())}"


def _numbers(model: Any) -> str:
    values = {str(variable): model[variable] for variable in model if model[variable] is not None}
    named = [f"{size}={values[size]}" for size in ("p", "M", "s", "k", "j") if size in values]
    return ", ".join(named)
