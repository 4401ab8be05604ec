"""What the planner predicts that every device sends and holds is what is counted, 0 off."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
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

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.models.sizes import MODELS as PUBLISHED
from primepar.partition import parse_sequence
from primepar.plan import preset_plan
from primepar.plan.cluster import BYTES, Link, load_cluster
from primepar.plan.cost.sent_elements import sent_by_sequence
from primepar.plan.cost.traffic import SWEEPS, PredictedTraffic, traffic
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult
from primepar.plan.search.search import search
from primepar.plan.search.sequence_space import SpaceName
from primepar.plan.simulator.account import accounting, step_options
from primepar.plan.simulator.events import BlockBytes, sent
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import lower
from primepar.schedule.operators import Linear

SIZES = {"layers": 1, "hidden": 16, "heads": 8, "context": 4}
MODELS = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, vocabulary=21),
    "opt": ModelConfig.of("opt", **SIZES, vocabulary=24, tied=False),
    "llama": ModelConfig.of("llama", **SIZES, vocabulary=13, kv_heads=4, ffn=24),
    "bloom": ModelConfig.of("bloom", **SIZES, vocabulary=32),
}
"""Tied and not, with a vocabulary that 8 devices divide and one that they do not."""
PLANS = 100 if IS_LONG else 4


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
        assert list(traffic(*step).total) == sent
        assert result.sent == tuple(ceil(4 * amount) for amount in sent)
        assert result.held == tuple(bytes_held_by(program, "float32"))
        assert max(result.held) <= result.memory, "what the search adds up is a bound"

    counts()


@pytest.mark.parametrize(
    ("name", "devices"), [("opt-6.7b", 8), ("llama-2-7b", 4), ("bloom-7b1", 4)]
)
def test_the_best_plan_of_a_published_model_does(name: str, devices: int) -> None:
    """Of 6 layers, 3 of which stand for all; in half precision too."""
    model = replace(PUBLISHED[name], layers=6)
    result = search(Planner.of(model, load_cluster("v100-8x4"), devices, 8, "float32", "paper"))
    program = lower_step(result.plan, 8, model.context, options=step_options("bfloat16"))
    account = accounting(result.plan, 8, model.context, "bfloat16")
    assert traffic(result.plan, 8, model.context, masters=True).bytes("bfloat16") == account.sent
    assert account.held == tuple(bytes_held_by(program, "bfloat16"))


@pytest.mark.parametrize(
    "text", ["K2,P2x2,M2", "N2,S2x2,K2", "M3,T2x2x2", "P2x2,N2,P2x2", "Ks2,K2,Ns2", "N2,Os2x2,M2"]
)
def test_devices_along_cuts_send_alike(text: str) -> None:
    """Cuts around what moves are left out and multiplied: the program of all devices sends that."""
    sequence, shape = parse_sequence(text), Linear(M=96, N=96, K=96)
    for spends_weight in (False, True):
        for phases in SWEEPS:
            program = lower(sequence, shape, phases, spends_weight)
            size = BlockBytes(program, "float32").elements
            assert sent_by_sequence(sequence, shape, phases, spends_weight=spends_weight) == tuple(
                sum(sent(node, rank, size) for node in nodes)
                for rank, nodes in enumerate(program.programs)
            )


@pytest.mark.parametrize("family", ["opt", "bloom"])
@pytest.mark.parametrize(
    ("devices", "batch", "dtype"),
    [(2, 8, "float32"), (4, 2, "bfloat16"), (8, 8, "float32"), (8, 2, "bfloat16")],
)
def test_the_time_of_an_operator_is_that_of_the_bytes_which_it_sends(
    family: str, devices: int, batch: int, dtype: str
) -> None:
    """Where a byte takes a second and all else nothing, and cuts divide the vocabulary."""
    on = cluster(Link(8, 0.0, 1.0, False))
    planner = Planner.of(MODELS[family], on, devices, batch, dtype, "paper")
    item = BYTES[dtype]
    random = Random(devices + batch)
    for _ in range(4):
        choices = {name: random.randrange(len(planner.options(name))) for name in planner.named}
        sent = traffic(SearchResult(planner, 0.0, choices).plan, batch, 4)
        for name, number in choices.items():
            seconds = planner.options(name).seconds[number]
            pairs = zip(sent.operators[name], sent.wide[name], strict=True)
            moved = max(item * elements + (4 - item) * wide for elements, wide in pairs)
            assert seconds == pytest.approx(float(moved), rel=1e-12), name


def test_emulated_devices_send_and_hold_it() -> None:
    plan = preset_plan("primepar", MODELS["llama"], 4)
    program = lower_step(plan, 2, 4)
    emulated = emulate(program, memories(program))
    assert list(traffic(plan, 2, 4).total) == emulated.sent
    assert list(accounting(plan, 2, 4, "float32").held) == emulated.held(4, 4)


def test_operators_and_edges_are_counted_separately() -> None:
    """Two ranks share columns under Megatron: O and dI of its rows, and 3 numbers of each row."""
    predicted = traffic(preset_plan("megatron", MODELS["opt"], 2), 2, 4)
    one, rows, hidden = Fraction(1), 8, 16
    assert predicted.operators["blocks.0.proj"] == (rows * hidden * one,) * 2
    assert predicted.operators["blocks.0.qkv"] == (rows * hidden * one,) * 2
    assert not any(predicted.operators["blocks.0.norm1"])
    assert predicted.operators["loss"] == (3 * rows * one,) * 2
    assert not any(map(any, predicted.edges.values()))


def test_bytes_are_whole_and_of_the_data_type() -> None:
    norm = (Fraction(0), Fraction(1))
    operators, between = (
        {"a": (Fraction(1, 3), Fraction(5))},
        {("a", "b"): (Fraction(0), Fraction(1))},
    )
    predicted = PredictedTraffic(operators, between, norm, {"a": (Fraction(1, 3), Fraction(2))})
    assert predicted.bytes("float64") == (3, 56)
    assert predicted.bytes("float32") == (2, 28)
    assert predicted.bytes("bfloat16") == (2, 20)


def test_a_batch_that_the_plan_does_not_divide_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        traffic(preset_plan("data", MODELS["opt"], 8), 3, 4)
    assert str(caught.value) == (
        "batch: expected a multiple or a divisor of the 8 slices of the rows in "
        "blocks.0.attention, got 3: take 4"
    )
