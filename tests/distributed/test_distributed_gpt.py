"""The partitioned GPT on real processes against the same model on one."""

from __future__ import annotations

from functools import cache
from typing import Any

import distributed_cases as cases
import numpy as np
import pytest
from distributed_ranks import on_ranks
from linear_cases import Arrays, message_of
from profiles import IS_LONG

from primepar.models import GPTConfig, ModelConfig
from primepar.partition import parse_sequence
from primepar.plan.presets import uniform_plan
from primepar.reference.oracle.transformer import Transformer

SEQUENCES = ["P2x2"]
SEQUENCES += ["P1x1", "N2", "M2", "K2", "Ns2,Ks2", "P3x3", "M2,P2x2", "K,P2x2"] if IS_LONG else []
CLOSE = 1e-11


def size_of(sequence: str) -> int:
    return parse_sequence(sequence).ranks


@cache
def results(size: int) -> list[dict[tuple[str, str], Any]]:
    """Everything that one world of `size` processes is asked, rank by rank."""
    asked = [("gpt", sequence) for sequence in SEQUENCES if size_of(sequence) == size]
    if size == 4:
        asked += [("loaded", "P2x2"), ("traced", "P2x2")]
    answers = on_ranks(size, cases.several, [(work, (sequence,)) for work, sequence in asked])
    return [dict(zip(asked, answer, strict=True)) for answer in answers]


@cache
def one_process() -> dict[str, Any]:
    return cases.gpt("")


def difference(got: Arrays, expected: Arrays) -> float:
    """Largest difference of two sets of arrays, each relative to the largest of its entries."""
    assert got.keys() == expected.keys()
    return max(
        float(np.abs(got[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


def test_one_process_is_the_numpy_transformer() -> None:
    tokens_BT, targets_BT = cases.batch()
    model = Transformer.initial(cases.CONFIG, seed=3)
    loss, gradients = model.loss_and_gradients(tokens_BT.numpy(), targets_BT.numpy())
    assert one_process()["losses"][0] == pytest.approx(loss, rel=1e-12)
    assert difference(one_process()["gradients"], gradients) < CLOSE


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_training_goes_as_on_one_process(sequence: str) -> None:
    """With the same loss on all ranks."""
    first, *others = (result["gpt", sequence] for result in results(size_of(sequence)))
    assert difference(first["gradients"], one_process()["gradients"]) < CLOSE
    assert first["losses"] == pytest.approx(one_process()["losses"], rel=CLOSE)
    assert difference(first["parameters"], one_process()["parameters"]) < CLOSE
    for got in (first, *others):
        assert got["losses"] == first["losses"]


def test_no_rank_of_primepar_holds_more_than_its_share() -> None:
    linears = [f"{name}.weight" for name in cases.CONFIG.linear_shapes]
    for result in results(4):
        blocks = result["gpt", "P2x2"]["blocks"]
        shares = {name: blocks[name].size * 4 for name in linears}
        assert shares == {
            name: int(np.prod(cases.CONFIG.parameter_shapes[name])) for name in linears
        }


def test_a_parameter_comes_back_as_it_was_loaded() -> None:
    assert [result["loaded", "P2x2"] for result in results(4)] == [True] * 4


def test_a_trace_shows_every_product_and_all_that_was_sent() -> None:
    steps, phases, linears = 2, 3, len(cases.CONFIG.linear_shapes)
    for result in results(4):
        counted, traced, products = result["traced", "P2x2"]
        assert traced == counted
        assert products == steps * phases * linears


def test_what_a_model_cannot_do_is_refused() -> None:
    assert cases.refusals() == [
        "ShapeError: tokens: expected at most context=2 positions, got 3: cut the sequences",
        "ShapeError: targets: expected a target for each token, shape (2, 3), got (1, 3)",
        "ConfigError: parameter 'norm.weight': expected a gradient, got none: "
        "call loss(...).backward() first",
        "ConfigError: parameter 'norm.scale': expected a name of ModelConfig.parameter_shapes, "
        "like 'blocks.0.qkv.weight'",
        "ShapeError: parameter 'norm.weight': expected shape (4,), got (5,)",
    ]


@pytest.mark.parametrize(
    ("sequence", "config", "message"),
    [
        ("K2", GPTConfig(layers=1, hidden=9, heads=3), "ConfigError: hidden: expected a multiple "
         "of 2 for sequence 'K2', got 9: take 10, or another sequence"),
        ("K2", GPTConfig(layers=1, hidden=6, heads=3), "ConfigError: heads: expected a multiple "
         "of 2 for sequence 'K2', got 3: take 4, or another sequence"),
        ("Ks2,Ns2", cases.CONFIG, "SequenceError: sequence 'Ks2,Ns2': expected one block of O on "
         "every device, the layout of all other operators, got 2: put Ks, Ns, C, Cr or D last, or "
         "write a plan, in which a linear operator may leave several"),
    ],
)  # fmt: skip
def test_a_sequence_that_cannot_run_a_model_is_refused(
    sequence: str, config: ModelConfig, message: str
) -> None:
    assert message_of(uniform_plan, config, parse_sequence(sequence)) == message


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    plan = uniform_plan(cases.CONFIG, parse_sequence("M2"))
    assert message_of(plan.check_batch, 3, 2) == (
        "PlanError: batch: expected a multiple or a divisor of the 2 slices of the rows in "
        "blocks.0.attention, got 3: take 4"
    )
