"""What the planner predicts that every device sends and holds is what is counted, 0 off."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_steps import lower_step
from planner_cases import TWO_LEVELS, cluster
from profiles import IS_LONG
from step_cases import bytes_held_by, calls_of_step, sent_by

from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS as PUBLISHED
from primepar.operators import StepOptions
from primepar.plan.cluster import Link, load_cluster
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.simulator.account import accounting, step_options
from primepar.plan.simulator.work import BlockBytes, sent

SIZES = {"layers": 1, "hidden": 16, "heads": 8, "context": 4}
MODELS = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, vocabulary=21),
    "opt": ModelConfig.of("opt", **SIZES, vocabulary=24, tied=False),
    "llama": ModelConfig.of("llama", **SIZES, vocabulary=13, kv_heads=4, ffn=24),
    "bloom": ModelConfig.of("bloom", **SIZES, vocabulary=32),
}
"""Tied and not, with a vocabulary that 8 devices divide and one that they do not."""
PLANS = 100 if IS_LONG else 2
PUBLISHED_PLANS = [("llama-2-7b", 4), ("bloom-7b1", 4), ("opt-6.7b", 8)]


@cache
def planner(family: str, devices: int, batch: int, space: SpaceName) -> Planner:
    return Planner.of(MODELS[family], TWO_LEVELS, devices, batch, "float32", space)


@st.composite
def chosen(draw: st.DrawFn, space: SpaceName) -> SearchResult:
    """Any choice that a search over a space may make."""
    family, devices = draw(st.sampled_from(list(MODELS))), draw(st.sampled_from([2, 4, 8]))
    options = planner(family, devices, draw(st.sampled_from([2, 8])), space)
    choices = {name: draw(st.integers(0, len(options.options(name)) - 1)) for name in options.named}
    return SearchResult(options, 0.0, choices)


@pytest.mark.parametrize("space", ["paper", "all"])
def test_any_plan_of_a_space_sends_and_holds_what_is_predicted(space: SpaceName) -> None:
    """Instruction by instruction; preset plans and any others are in `test_plan_step_sent`."""

    @settings(max_examples=PLANS)
    @given(chosen(space))
    def counts(result: SearchResult) -> None:
        training = result.planner.training
        step = result.plan, training.batch, training.positions
        program = lower_step(*step)
        sent = sent_by(calls_of_step(program))
        assert result.sent == tuple(ceil(4 * amount) for amount in sent)
        assert result.held == tuple(bytes_held_by(program, "float32"))
        assert max(result.held) <= result.memory, "what the search adds up is a bound"

    counts()


@pytest.mark.parametrize(("name", "devices"), PUBLISHED_PLANS[: None if IS_LONG else 1])
def test_the_best_plan_of_a_published_model_does(name: str, devices: int) -> None:
    """Of 6 layers, 3 of which stand for all; in half precision too."""
    model = replace(PUBLISHED[name], layers=6)
    result = search(Planner.of(model, load_cluster("v100-8x4"), devices, 8, "float32", "paper"))
    program = lower_step(result.plan, 8, model.context, options=step_options("bfloat16"))
    account = accounting(result.plan, 8, model.context, "bfloat16")
    size = BlockBytes(program, "bfloat16")
    for rank, nodes in enumerate(program.programs):
        assert account.sent[rank] == ceil(sum(sent(node, rank, size) for node in nodes))
    assert account.held == tuple(bytes_held_by(program, "bfloat16"))


@pytest.mark.parametrize(
    ("family", "devices", "batch", "dtype"),
    [("opt", 2, 8, "float32"), ("bloom", 4, 2, "bfloat16"), ("opt", 8, 2, "bfloat16")],
)
def test_the_price_is_the_time_of_the_bytes_that_are_sent(
    family: str, devices: int, batch: int, dtype: str
) -> None:
    """Where a byte takes a second and all else nothing, and cuts divide the vocabulary.

    The price has the busiest device of every operator, and no bytes of the gradients' norm.
    """
    on, random = cluster(Link(8, 0.0, 1.0, False)), Random(devices + batch)
    model = replace(MODELS[family], vocabulary=32)
    planner = Planner.of(model, on, devices, batch, dtype, "paper")
    options = StepOptions(wide_sums=dtype == "bfloat16")
    for _ in range(4):
        choices = {name: random.randrange(len(planner.options(name))) for name in planner.named}
        result = SearchResult(planner, 0.0, choices)
        program = lower_step(result.plan, batch, 4, passes=(), options=options)
        size = BlockBytes(program, dtype)
        most = max(float(sum(sent(node, rank, size) for node in nodes))
                   for rank, nodes in enumerate(program.programs))  # fmt: skip
        assert 0.995 * most <= result.seconds <= 1.1 * most
