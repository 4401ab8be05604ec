"""Step programs on real processes, every block of every gradient against the dense transformer."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from distributed_ranks import on_ranks
from distributed_steps import BATCH, POSITIONS, Ended, Passes, run_steps
from linear_cases import Arrays
from partitioned_cases import (
    ON_FOUR,
    SHAPES,
    dense_step,
    drawn_batch,
    drawn_parameters,
    plan_apart,
)
from profiles import IS_LONG

from primepar.distributed.runtime.collectives import elements_sent
from primepar.distributed.runtime.shapes import Shapes
from primepar.operators import Until
from primepar.plan import Plan, preset_plan
from primepar.plan.layouts import padded_vocabulary
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule import Linear, Program, lower
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Collective, ISend

RANKS = 4
Case = tuple[str, str, Until, Passes]
CASES: list[Case] = [
    ("gpt2", "summa", "gradients", True),
    ("llama", "megatron-sp", "gradients", True),
    ("gpt2", "apart", "gradients", True),
    ("bloom", "primepar", "gradients", False),
    ("gpt2", "megatron-sp", "gradients", "chunks"),
    ("llama", "M2,megatron-sp", "logits", True),
]
LONG: list[Case] = [
    *(("gpt2", name, "gradients", True) for name in (*ON_FOUR, "M2,megatron-sp")),
    *(("llama", name, "gradients", True) for name in (*ON_FOUR[2:], "M2,megatron-sp", "apart")),
    ("bloom", "megatron-sp", "gradients", False),
    ("opt", "stationary", "gradients", False),
    *(("llama", name, "gradients", "chunks") for name in ("megatron", "megatron-sp")),
    ("gpt2", "megatron", "gradients", "chunks"),
    ("gpt2", "primepar", "loss", True),
]
CASES += [case for case in LONG if IS_LONG and case not in CASES]
"""Family, plan, what the program ends with, and whether after the passes, or in chunks."""
KEYS = ("family", "name", "until", "passes")


def plan_of(family: str, name: str) -> Plan:
    if name == "apart":
        return plan_apart(SHAPES[family], RANKS)
    return preset_plan(name, SHAPES[family], RANKS)


@cache
def results() -> list[list[Ended]]:
    return on_ranks(RANKS, run_steps, [(plan_of(*case[:2]), *case[2:]) for case in CASES])


def ended(*case: Any) -> tuple[Program, list[Ended]]:
    """The program, and what every rank has."""
    everyone = [rank_results[CASES.index(case)] for rank_results in results()]
    return msgspec.json.decode(everyone[0].program, type=Program), everyone


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
    """Of three runs; the executor makes no memory after the first, and counts what it sends."""
    program, everyone = ended(family, name, until, passes)
    meaning, whole = Meaning(program), expected(family, until)
    seen = set()
    for rank in everyone:
        for block, got in rank.blocks.items():
            place = meaning.place(block)
            assert place is not None
            size = [line[-1] for line in (program.tensors or {})[block.rpartition("[")[0]].cuts]
            known = place.tensor.removesuffix("/O")
            seen.add(known)
            right = part(whole[known], size, place.box)
            if until == "logits" and known == "head":  # those of the padding have no meaning
                columns = whole[known].shape[1] - place.box[1][0]
                got, right = got[:, :columns], right[:, :columns]
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12, err_msg=block)
        assert rank.untouched
        assert rank.counted == {kind: sent for kind, sent in rank.sent.items() if sent}
        assert abs(rank.traced[0] - sum(rank.sent.values())) <= len(program.programs[0])
    if until == "gradients":
        assert seen == {"loss", *drawn_parameters(SHAPES[family]),
                        *(f"{name}.grad" for name in drawn_parameters(SHAPES[family]))}  # fmt: skip
    phases = [rank.traced[1] for rank in everyone]
    assert set[str]().union(*phases) == set(program.phases or {})


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
    _, everyone = ended(family, name, until, passes)
    assert [rank.sent.get("linear", Fraction(0)) for rank in everyone] == alone
