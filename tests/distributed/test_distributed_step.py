"""Step programs on real processes, every block of every gradient against the dense transformer."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from distributed_ranks import on_ranks
from distributed_steps import BATCH, POSITIONS, Ended, Passes, program_of, run_steps
from linear_cases import Arrays
from lowered_steps import lower_step
from partitioned_cases import (
    ON_FOUR,
    SHAPES,
    dense_step,
    drawn_batch,
    drawn_parameters,
    plan_apart,
)
from profiles import IS_LONG
from step_cases import calls_of_step, sent_by

from primepar.distributed.runtime.collectives import elements_sent
from primepar.distributed.runtime.shapes import Shapes
from primepar.operators import Until
from primepar.plan import Plan, preset_plan
from primepar.plan.layouts import padded_vocabulary
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule import Linear, lower
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Collective, ISend

RANKS = 4
PLANS = (*ON_FOUR, "M2,megatron-sp", "apart")
CASES: list[tuple[str, str, Until, Passes]] = [
    *(("gpt2", name, "gradients", True) for name in PLANS[:: 1 if IS_LONG else 2]),
    *(("llama", name, "gradients", True) for name in PLANS[1:][:: 1 if IS_LONG else 4]),
    *(("bloom", name, "gradients", False) for name in ("primepar", "megatron-sp")),
    ("opt", "stationary", "gradients", False),
    *(
        (family, name, "gradients", "chunks")
        for family in ("gpt2", "llama")
        for name in ("megatron", "megatron-sp")
    ),
    ("gpt2", "primepar", "loss", True),
    ("llama", "M2,megatron-sp", "logits", True),
]
"""Family, plan, what the program ends with, and whether after the passes, or in chunks."""
KEYS = ("family", "name", "until", "passes")


def plan_of(family: str, name: str) -> Plan:
    if name == "apart":
        return plan_apart(SHAPES[family], RANKS)
    return preset_plan(name, SHAPES[family], RANKS)


@cache
def results() -> list[list[Ended]]:
    return on_ranks(RANKS, run_steps, [(plan_of(*case[:2]), *case[2:]) for case in CASES])


def ended(family: str, name: str, until: Until, passes: Passes) -> list[Ended]:
    """What every rank has."""
    number = CASES.index((family, name, until, passes))
    return [rank_results[number] for rank_results in results()]


def expected(family: str, until: Until) -> Arrays:
    """Whole tensors by the names that the program has for them."""
    loss, gradients = dense_step(SHAPES[family], BATCH, POSITIONS)
    tensors: Arrays = {f"{name}.grad": array for name, array in gradients.items()}
    tensors |= drawn_parameters(SHAPES[family]) | {"loss": np.array([loss])}
    if until == "logits":
        model = Transformer(SHAPES[family], drawn_parameters(SHAPES[family]))
        tokens, _ = drawn_batch(SHAPES[family], BATCH, POSITIONS)
        tensors["head"] = model.logits(tokens).reshape(BATCH * POSITIONS, -1)
    return tensors


def part(array: Any, size: list[int], box: tuple[tuple[int, int], ...]) -> Any:
    """The elements of a box of a tensor, which has `size` elements with its padding."""
    array = array[None] if array.ndim < len(size) else array
    padded = np.pad(array, [(0, a - b) for a, b in zip(size, array.shape, strict=True)])
    return padded[tuple(slice(*line) for line in box)]


@pytest.mark.parametrize(KEYS, CASES)
def test_every_block_is_that_of_the_dense_transformer(
    family: str, name: str, until: Until, passes: Passes
) -> None:
    program = program_of(plan_of(family, name), until, passes)
    meaning, whole = Meaning(program), expected(family, until)
    seen = set()
    for ended_rank in ended(family, name, until, passes):
        for block, got in ended_rank.blocks.items():
            place = meaning.place(block)
            assert place is not None
            tensor = block.rpartition("[")[0]
            size = [line[-1] for line in (program.tensors or {})[tensor].cuts]
            known = place.tensor.removesuffix("/O")
            seen.add(known)
            right = part(whole[known], size, place.box)
            if until == "logits" and known == "head":  # those of the padding have no meaning
                columns = whole[known].shape[1] - place.box[1][0]
                got, right = got[:, :columns], right[:, :columns]
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12, err_msg=block)
        assert ended_rank.untouched
    if until == "gradients":
        assert seen == {"loss", *drawn_parameters(SHAPES[family]),
                        *(f"{name}.grad" for name in drawn_parameters(SHAPES[family]))}  # fmt: skip


@pytest.mark.parametrize(KEYS, CASES)
def test_no_memory_is_made_after_the_first_step(
    family: str, name: str, until: Until, passes: Passes
) -> None:
    for ended_rank in ended(family, name, until, passes):
        assert len(set(ended_rank.made)) == 1


@pytest.mark.parametrize(KEYS, CASES)
def test_what_is_sent_is_counted_alike_and_recorded(
    family: str, name: str, until: Until, passes: Passes
) -> None:
    program = program_of(plan_of(family, name), until, passes)
    for ended_rank in ended(family, name, until, passes):
        assert ended_rank.counted == {kind: sent for kind, sent in ended_rank.sent.items() if sent}
        elements, phases = ended_rank.traced
        assert abs(elements - sum(ended_rank.sent.values())) <= len(program.programs[0])
        assert phases <= set(program.phases or {})
    assert {
        phase for ended_rank in ended(family, name, until, passes) for phase in ended_rank.traced[1]
    } == set(program.phases or {})


@pytest.mark.parametrize(KEYS, [case for case in CASES if case[2] == "gradients"])
def test_linear_operators_send_what_their_own_programs_send(
    family: str, name: str, until: Until, passes: Passes
) -> None:
    plan = plan_of(family, name)
    alone = [Fraction(0)] * RANKS
    for operator in plan.operators:
        if operator.kind == "linear":
            columns = padded_vocabulary(plan) if operator.name == "head" else operator.K
            shape = Linear(M=BATCH * POSITIONS, N=operator.N, K=columns)
            program = lower(plan.sequence(operator.name), shape)
            size = Shapes(program).elements
            for rank, instructions in enumerate(program.programs):
                for node in instructions:
                    if isinstance(node, ISend):
                        alone[rank] += size(node.block)
                    elif isinstance(node, Collective):
                        alone[rank] += elements_sent(node, rank, size)
    everyone = ended(family, name, until, passes)
    assert [ended_rank.sent.get("linear", Fraction(0)) for ended_rank in everyone] == alone
    predicted = sent_by(calls_of_step(lower_step(plan, BATCH, POSITIONS)))
    sent = [sum(ended_rank.sent.values()) for ended_rank in everyone]
    assert all(of_step <= of_all for of_step, of_all in zip(sent, predicted, strict=True))
