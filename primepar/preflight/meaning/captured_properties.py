"""The properties of captured data, in addition to those of every program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.preflight.meaning.adjoint import adjoint
from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.gradients import gradients
from primepar.preflight.meaning.replication import replication
from primepar.preflight.meaning.terms import RankTerms
from primepar.schedule.program import Program
from primepar.verify.report import PropertyResult


def captured_properties(program: Program, terms: Sequence[RankTerms]) -> Iterator[PropertyResult]:
    """Yield those that are asked, of a program that runs to its end.

    Gradients are asked if an optimizer reads some or a parameter was changed, replication if a
    tensor is labelled so, the adjoint if a gradient comes back from another rank.
    """
    values = TermValues(program, terms)
    if any(of_rank.claims or _changed(of_rank) for of_rank in terms):
        yield gradients(values, terms)
    if any(of_rank.replicas for of_rank in terms):
        yield replication(values, terms)
    if any(of_rank.pullbacks for of_rank in terms):
        result = adjoint(program, values, terms)
        if result is not None:
            yield result


def _changed(terms: RankTerms) -> bool:
    return any(parameter.start != parameter.end for parameter in terms.trained)
