"""Sums over a cut vocabulary: right under any sequence, and the bytes are those of the formula."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import distributed_model_cases as cases
import msgspec
import numpy as np
import pytest
from distributed_ranks import on_ranks
from lowered_steps import lower_step
from operator_cases import Alone
from profiles import few
from step_cases import calls_of_step, sent_by

from primepar.models import initial_parameter
from primepar.plan import Plan, padded_vocabulary, preset_plan
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule.effects import effects
from primepar.schedule.program import AllReduce, Instruction, ISend, Program, ReduceScatter

MODEL = cases.MODELS["llama"]
COUNTS: dict[str, tuple[int | Fraction, int | Fraction, int]] = {
    "N4": (6, 0, 0),
    "Ns4": (3, 3, 0),
    "M2,Ns2": (1, 1, 2),
    "Ns2,K2": (1, 1, 0),
    "N2,Ns2": (4, 2, 0),
    "Ns2,N2": (4, 2, 0),
    "N2,M2": (2, 0, 2),
    "Ns2,M2": (Fraction(3, 2), Fraction(3, 2), 2),
    "R2,Ns2": (2, 2, 0),
    "Ns2,R2": (2, 2, 0),
}
"""Sequence -> what four devices send together: forward and backward in activations, for the sums of
the table's gradient in tables.

Of the rows L that each of g devices looks up it keeps one of f parts, k = g / f devices the same
one: (f - 1) / f of L for the reduce-scatter, 2 (k - 1) / k of L / f for the all-reduce, (f - 1) / f
of L backward. Under Ns2,M2 two devices of four are to have a part that another one has summed:
they exchange theirs, a quarter of the activation each, and fetch one more of them backward.
"""

STEPS = ("Ns2,M2", "Ns2,N2")


def plan_of(sequence: str) -> Plan:
    sequences = preset_plan("data", MODEL, 4).sequences | {"embedding": sequence}
    return Plan(model=MODEL, ranks=4, batch=cases.BATCH, sequences=sequences)


def expected(sequence: str) -> tuple[Fraction, Fraction]:
    forth, back, table = map(Fraction, COUNTS[sequence])
    activation = cases.BATCH * MODEL.context * MODEL.hidden
    sums = padded_vocabulary(plan_of(sequence)) * MODEL.hidden
    return forth * activation, back * activation + table * sums


@cache
def on_four() -> list[list[cases.Result]]:
    """Training steps of every rank."""
    return on_ranks(4, cases.steps, 4, [("llama", plan_of(each)) for each in STEPS])


def of_embedding(program: Program, *names: str) -> Program:
    """What is sent of the embedding's tensors that begin so."""

    def own(node: Instruction) -> bool:
        if isinstance(node, ISend):
            return node.request.startswith(names)
        return isinstance(node, AllReduce | ReduceScatter) and effects(node, 0).reads[0].startswith(
            names
        )

    lists = tuple(tuple(filter(own, each)) for each in program.programs)
    return msgspec.structs.replace(program, programs=lists)


@few
@pytest.mark.parametrize("sequence", COUNTS)
def test_a_program_sends_what_the_formula_gives(sequence: str) -> None:
    program = lower_step(plan_of(sequence), cases.BATCH, MODEL.context)
    forth, back = (
        sum(sent_by(calls_of_step(of_embedding(program, *names))), Fraction(0))
        for names in (("embedding[", "embedding/sums", "embedding/O"),
                      ("embedding/drows", "embedding.token.grad"))
    )  # fmt: skip
    assert (forth, back) == expected(sequence)


@pytest.mark.parametrize("sequence", STEPS)
def test_a_step_on_processes_is_that_of_one_device(sequence: str) -> None:
    result = on_four()[0][STEPS.index(sequence)]
    model = Transformer(MODEL, cases.parameters(MODEL))
    loss, gradients = model.loss_and_gradients(*cases.batch(MODEL))
    assert result.loss == pytest.approx(loss, rel=1e-10)
    for name, gradient in gradients.items():
        error = np.abs(result.gradients[name] - gradient).max() / np.abs(gradient).max()
        assert error < 1e-10, name


@pytest.mark.parametrize("sequence", COUNTS)
def test_emulated_devices_send_what_the_formula_gives_and_have_the_rows(sequence: str) -> None:
    tokens_BT = cases.batch(MODEL)[0]
    table_VH = initial_parameter(MODEL, "embedding.token", 0)
    x_MH = table_VH[tokens_BT.reshape(-1)]
    given = {"tokens": tokens_BT.reshape(-1), "embedding.token": table_VH}
    alone = Alone(plan_of(sequence), "embedding", *tokens_BT.shape)
    y_MH, _, forward = alone.run(given, backward=False)
    np.testing.assert_array_equal(y_MH, x_MH)
    forth = sum(forward, Fraction(0))
    both = sum(alone.run({**given, "dy": np.ones_like(x_MH)}).sent, Fraction(0))
    assert (forth, both - forth) == expected(sequence)
