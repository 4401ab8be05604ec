"""Lemmas for every size: what holds of nothing proves nothing, and failures have small numbers."""

from __future__ import annotations

from time import perf_counter

import pytest
import z3

from primepar.partition.local_sgd import average_share, next_count
from primepar.partition.pipeline.actions import CLOSED_FORMS
from primepar.verify.every_size import attention, flux, pipelines, stream_k
from primepar.verify.every_size.lemmas import Lemma, Variable, failure, results
from primepar.verify.every_size.local_sgd import period_lemmas, share_lemmas

n, k = z3.Ints("n k")
OVER = (Variable(n, 1), Variable(k, 0, n))
EVERY = {
    "flux-gather": flux.lemmas(flux.GATHER),
    "flux-scatter": flux.lemmas(flux.SCATTER),
    "ring-attention": attention.ring_lemmas(attention.RingOfKeys()),
    "ulysses": attention.exchange_lemmas(attention.HeadExchange()),
    "local-sgd": [
        *period_lemmas(next_count),
        *share_lemmas(average_share),
    ],
    "stream-k": stream_k.lemmas(),
    "gpipe": pipelines.lemmas("gpipe", CLOSED_FORMS["gpipe"]),
    "1f1b": pipelines.lemmas("1f1b", CLOSED_FORMS["1f1b"]),
}


def why(lemma: Lemma, seconds: float = 10.0) -> str | None:
    failed = failure(lemma, perf_counter() + seconds, [n])
    return None if failed is None else failed.sentence


def test_a_lemma_holds_for_the_numbers_in_its_ranges() -> None:
    assert why(Lemma("below", (), OVER, k <= n - 1)) is None
    assert why(Lemma("even", (), OVER, k % 2 == 0)) == (
        "expected 'even', got formulas without it at n=2, k=1"
    )


def test_what_holds_of_no_numbers_is_not_proved() -> None:
    nothing = Lemma("nothing", ("coverage",), OVER, k == 5, [k > n])
    reason = "nothing: no numbers satisfy what it is given, so it proves nothing"
    assert why(nothing) == reason
    (result,) = results([nothing], 10.0, ["coverage"], lambda *_: "")
    assert (result.verdict, result.reason) == ("unknown", reason)
    with pytest.raises(ValueError, match="expected a lemma of races, got none"):
        list(results([nothing], 10.0, ["races"], lambda *_: ""))


def test_without_time_it_is_not_decided() -> None:
    assert why(Lemma("below", (), OVER, k < n), 0.0) == (
        "below: Z3 did not decide it within its time limit"
    )


def test_a_lemma_that_fails_where_nothing_goes_wrong_is_unknown() -> None:
    lemma = Lemma("even", ("coverage",), OVER, k % 2 == 0)
    for fault, verdict in (("stage 1", "refuted"), (None, "unknown")):
        (result,) = results([lemma], 10.0, ["coverage"], lambda *_: "", {"coverage": fault}.get)
        assert (result.verdict, result.counterexample) == (verdict, fault)


@pytest.mark.parametrize("name", EVERY)
def test_every_lemma_of_a_method_can_fail(name: str) -> None:
    """Its opposite does not hold too, and no two have one name."""
    end = perf_counter() + 60.0
    for lemma in EVERY[name]:
        claim = lemma.claim if z3.is_expr(lemma.claim) else getattr(lemma.claim, "term", None)
        assert claim is not None
        opposite = Lemma(lemma.name, (), lemma.over, z3.Not(claim), lemma.given)
        failed = failure(opposite, end)
        assert failed is not None
        assert failed.is_refuted
    names = [lemma.name for lemma in EVERY[name]]
    assert len(set(names)) == len(names)
