"""Step programs on real processes, every block of every gradient against the dense transformer.

On gloo some of them; under the rules of NCCL every preset plan that fits four devices, and every
pipeline. There the host goes on at waits.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import chain, cycle
from typing import Any

import msgspec
import numpy as np
import pytest
from distributed_ranks import on_ranks
from distributed_steps import BATCH, POSITIONS, Ended, Passes, run_steps
from linear_cases import Arrays
from nccl_rules import LAZY
from partitioned_cases import (
    ON_FOUR,
    SHAPES,
    dense_step,
    drawn_batch,
    drawn_parameters,
    plan_apart,
)
from pipelined_plans import pipelined
from profiles import IS_LONG

from primepar.distributed.runtime.shapes import Shapes
from primepar.models import ModelConfig
from primepar.operators import Until
from primepar.plan import Plan, preset_plan
from primepar.plan.layouts import padded_vocabulary
from primepar.reference.oracle.transformer import Transformer
from primepar.schedule import Linear, Program, lower
from primepar.schedule.ledger import sends
from primepar.schedule.meaning import Meaning

RANKS = 4
Step = tuple[str, str, Until, Passes]
Case = tuple[str, str, str, Until, Passes]
GLOO: list[Case] = [
    ("gloo", "gpt2", "summa", "gradients", True),
    ("gloo", "llama", "megatron-sp", "gradients", True),
    ("gloo", "gpt2", "1f1b:2x4,megatron", "gradients", True),
    ("gloo", "llama", "M2,megatron-sp", "logits", True),
]
RULES: list[Case] = [
    *(
        (LAZY, family, name, "gradients", True)
        for family, name in zip(cycle(SHAPES), (*ON_FOUR, "apart"), strict=False)
    ),
    (LAZY, "bloom", "primepar", "gradients", False),
    (LAZY, "llama", "megatron-sp", "gradients", "chunks"),
    (LAZY, "opt", "zbv:2x4,data", "gradients", True),
    (LAZY, "bloom", "zb-h1:2x2,megatron-sp", "gradients", True),
    (LAZY, "llama", "interleaved-1f1b:2x2,M2,data", "gradients", True),
    (LAZY, "llama", "gpipe:2x2,data", "gradients", True),
    (LAZY, "gpt2", "1f1b:2x4,megatron", "gradients", True),
]
LONG: list[Step] = [
    *(("gpt2", name, "gradients", True) for name in (*ON_FOUR, "M2,megatron-sp")),
    *(("llama", name, "gradients", True) for name in (*ON_FOUR[2:], "M2,megatron-sp", "apart")),
    ("bloom", "megatron-sp", "gradients", False),
    ("opt", "stationary", "gradients", False),
    *(("llama", name, "gradients", "chunks") for name in ("megatron", "megatron-sp")),
    ("gpt2", "megatron", "gradients", "chunks"),
    ("gpt2", "primepar", "loss", True),
]
CASES = [*GLOO, *RULES]
CASES += [
    (backend, *case)
    for backend in ("gloo", LAZY)
    for case in LONG
    if IS_LONG and (backend, *case) not in CASES
]
"""Backend, family, plan, what the program ends with, and whether after the passes, or in chunks."""
KEYS = ("backend", "family", "name", "until", "passes")


def plan_of(family: str, name: str) -> Plan:
    if name == "apart":
        return plan_apart(SHAPES[family], RANKS)
    schedule, colon, rest = name.partition(":")
    if not colon:
        return preset_plan(name, SHAPES[family], RANKS)
    sizes, _, within = rest.partition(",")
    model = pipelined(schedule, within, RANKS, family, sizes).model
    return preset_plan(name, model, RANKS, BATCH)


@cache
def results(backend: str) -> list[list[Ended]]:
    asked = [(plan_of(case[1], case[2]), *case[3:]) for case in CASES if case[0] == backend]
    return on_ranks(RANKS, run_steps, asked, backend=backend)


def ended(backend: str, *case: Any) -> tuple[Program, list[Ended]]:
    """The program, and what every rank has."""
    number = [asked for backed, *asked in CASES if backed == backend].index([*case])
    everyone = [rank_results[number] for rank_results in results(backend)]
    return msgspec.json.decode(everyone[0].program, type=Program), everyone


def expected(config: ModelConfig, until: Until) -> Arrays:
    """Whole tensors by the names that the program has for them."""
    loss, gradients = dense_step(config, BATCH, POSITIONS)
    tensors: Arrays = {f"{name}.grad": array for name, array in gradients.items()}
    tensors |= drawn_parameters(config) | {"loss": np.array([loss])}
    if until == "logits":
        model = Transformer(config, drawn_parameters(config))
        tokens, _ = drawn_batch(config, BATCH, POSITIONS)
        tensors["head"] = model.logits(tokens).reshape(BATCH * POSITIONS, -1)
    return tensors


def part(array: Any, size: list[int], box: tuple[tuple[int, int], ...]) -> Any:
    """The elements of a box of a tensor, which has `size` elements with its padding."""
    array = array[None] if array.ndim < len(size) else array
    padded = np.pad(array, [(0, a - b) for a, b in zip(size, array.shape, strict=True)])
    return padded[tuple(slice(*line) for line in box)]


@pytest.mark.parametrize(KEYS, CASES)
def test_every_block_is_that_of_the_dense_transformer(
    backend: str, family: str, name: str, until: Until, passes: Passes
) -> None:
    """Of the last run; the executor counts what it sends, and leaves given blocks as they are."""
    program, everyone = ended(backend, family, name, until, passes)
    config = plan_of(family, name).model
    meaning, whole = Meaning(program), expected(config, until)
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
        names = config.parameter_shapes
        assert seen == {"loss", *names, *(f"{name}.grad" for name in names)}
    phases = [rank.traced[1] for rank in everyone]
    assert set[str]().union(*phases) == set(program.phases or {})


@pytest.mark.parametrize(
    KEYS, [case for case in CASES if case[3] == "gradients" and ":" not in case[2]]
)
def test_linear_operators_send_what_their_own_programs_send(
    backend: str, family: str, name: str, until: Until, passes: Passes
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
                for block, times in chain(*(sends(node, rank) for node in instructions)):
                    alone[rank] += times * size(block)
    _, everyone = ended(backend, family, name, until, passes)
    assert [rank.sent.get("linear", Fraction(0)) for rank in everyone] == alone
