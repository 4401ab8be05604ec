"""Every family of models under every plan of four ranks: NCCL against NumPy, in float64."""

from __future__ import annotations

from fractions import Fraction

import pytest
from backends import LONG
from test_distributed_model import cases_on, oracle, plan_of, results, worst

RANKS = 4
CLOSE = 1e-9


@pytest.mark.parametrize(("name", "plan"), cases_on(RANKS))
@pytest.mark.parametrize("backend", LONG)
def test_loss_and_every_gradient_are_those_of_one_cpu(backend: str, name: str, plan: str) -> None:
    ranks = results(RANKS, name, plan, backend)
    loss, gradients = oracle(name, plan_of(name, plan, RANKS).batch)
    assert [result.loss for result in ranks] == [pytest.approx(loss, rel=CLOSE)] * RANKS
    assert worst(ranks[0].gradients, gradients) < CLOSE


@pytest.mark.parametrize(("name", "plan"), cases_on(RANKS))
@pytest.mark.parametrize("backend", LONG)
def test_every_backend_sends_the_same(backend: str, name: str, plan: str) -> None:
    sent: list[list[Fraction]] = [
        [result.sent for result in results(RANKS, name, plan, joined)]
        for joined in (backend, "gloo")
    ]
    assert sent[0] == sent[1]
    assert sum(sent[0]) > 0
