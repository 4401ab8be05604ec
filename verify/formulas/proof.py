"""Proves the formulas of memory and traffic of a correct primitive, for every side.

The result does not affect the other properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from primepar.certify.claims import Slices
from primepar.errors import PrimitiveError, SymbolicError
from primepar.schedule.deadline import UnansweredError
from primepar.schedule.expression import Number
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import formula
from primepar.verify.counterexample.primitive import of_primitive
from primepar.verify.formulas.block_sets import BlockSets
from primepar.verify.formulas.memory import copies, counters
from primepar.verify.formulas.symbolic_amount import ConditionalRatio
from primepar.verify.formulas.traffic import SentSets
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.smallest_mesh import fault_at, smallest_faults
from primepar.verify.primitive.z3_question import smallest_model
from primepar.verify.primitive.z3_symbols import Term
from primepar.verify.report import PropertyResult

FORMULAS = {"memory": "held", "traffic": "sent"}
"""Property -> the method of the primitive that states its formula."""
Sides = tuple[int, ...]


def formula_results(primitive: Primitive, slices: Slices, end: float) -> Iterator[PropertyResult]:
    """Yield the results of memory and traffic, each if the primitive has a formula for it.

    `slices` are those of the proof of correctness; Z3 is asked until `end`, a time of
    `perf_counter`. Raises `PrimitiveError` if a formula cannot be called with numbers.
    """
    blocks = BlockSets(primitive, slices, end)
    for property_, method in FORMULAS.items():
        start = perf_counter()
        try:
            traced = formula(primitive, method)
        except SymbolicError as error:
            yield PropertyResult(property_, "unknown", perf_counter() - start, reason=str(error))
            continue
        if traced is not None:
            yield _result(blocks, property_, traced, start)


def _result(blocks: BlockSets, property_: str, traced: Number, start: float) -> PropertyResult:
    hint = None
    try:
        reason, hint = _failure(blocks, property_, blocks.amount(traced))
    except (PrimitiveError, UnansweredError) as error:
        reason = str(error)
    if reason is None:
        note = copies(blocks) if property_ == "memory" else None
        took = perf_counter() - start
        return PropertyResult(property_, "proved", took, reason=note, certified=False)
    fault = smallest_faults(blocks.primitive, [property_], [], blocks.deadline).get(property_)
    if fault is None and hint is not None:
        fault = fault_at(blocks.primitive, property_, hint)
    seconds = perf_counter() - start
    if fault is None:
        return PropertyResult(property_, "unknown", seconds, reason=reason)
    details = of_primitive(blocks.primitive, fault.sides, property_, fault.sentence)
    return PropertyResult(property_, "refuted", seconds, fault.sentence, details=details)


def _failure(
    blocks: BlockSets, property_: str, cases: list[ConditionalRatio]
) -> tuple[str | None, Sides | None]:
    """Why a formula is not proved, None if it is; and the smallest sides where a claim fails."""
    claims = counters(blocks, cases) if property_ == "memory" else SentSets(blocks).counters(cases)
    for text, counter in claims:
        if not terms.FALSE.eq(counter) and not blocks.is_never(counter):
            sides = _smallest(blocks, counter)
            pairs = zip(blocks.space.names, sides or (), strict=False)
            place = ", ".join(f"{side}={length}" for side, length in pairs) or "some sides"
            return f"{text}: fails at {place}, though no mesh that was searched is wrong", sides
    return None, None


def _smallest(blocks: BlockSets, counter: Term) -> Sides | None:
    """The sides of the counterexample with the smallest sum; None if Z3 finds none in time."""
    solver = blocks.solver
    solver.push()
    try:
        solver.add(counter)
        model = smallest_model(solver, blocks.space, blocks.deadline)
    except UnansweredError:
        return None
    finally:
        solver.pop()
    if model is None:
        return None
    return tuple(model.eval(side.term, model_completion=True).as_long()
                 for side in blocks.space.sides)  # fmt: skip
