"""Steps that need less memory compute what plain steps compute: with micro-batches.

Emulated in float64, with dropout and clipping; then trained on four processes. All preset plans of
four devices run with HYPOTHESIS_PROFILE=ci.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import memory_ranks
import numpy as np
import pytest
import training_cases
from distributed_ranks import on_ranks
from lowered_steps import lower_step, shared_folder
from memory_ranks import OPERATORS, STEPS, WAYS
from msgspec.structs import replace
from partitioned_cases import DRAW, SHAPES, drawn_batch, drawn_parameters
from profiles import IS_LONG, few

from primepar import check
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of, planned
from primepar.errors import ConfigError, PlanError
from primepar.models.config import Family, ModelConfig
from primepar.operators import StepOptions
from primepar.passes.liveness import sizes_of
from primepar.plan import preset_plan, save_plan
from primepar.plan.plan import Recomputation
from primepar.reference.emulator.model import EmulatedModel
from primepar.schedule import Program
from primepar.schedule.ledger import sends
from primepar.verify import verify_program

BATCH, POSITIONS, UPDATES = 16, 4, 2
SIZES: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 4, "context": 16, "vocabulary": 256}
PRESETS = ("megatron", "megatron-sp", "summa", "tesseract", "primepar", "stationary", "data",
           "M2,megatron")  # fmt: skip
FEW = [
    ("llama", "M2,megatron", "accumulated"),
    ("llama", "primepar", "accumulated"),
    ("gpt2", "data", "sharded"),
    ("llama", "M2,megatron", "selective"),
    ("gpt2", "primepar", "full"),
    ("llama", "primepar", "operators"),
    ("llama", "M2,megatron", "all"),
]
ALL = [(family, name, way) for family in SHAPES for name in PRESETS for way in WAYS]
CASES = ALL if IS_LONG else FEW[::2]


@cache
def updated(family: Family, name: str, way: str | None) -> dict[str, Any]:
    """Parameters and moments after a few emulated steps, by name."""
    plan = preset_plan(name, SHAPES[family], 4)
    if way == "operators":
        plan = replace(plan, recompute=OPERATORS)
    plan = planned(Settings(**WAYS.get(way or "", {})), plan)
    model = EmulatedModel(plan.model, plan, drawn_parameters(plan.model))
    tokens, targets = drawn_batch(plan.model, BATCH, POSITIONS)
    for _ in range(UPDATES):
        model.update(tokens, targets, 1e-3, DRAW, clip=0.5)
    return {**model.parameters, **model.moments}


@few
@pytest.mark.parametrize(("family", "name", "way"), CASES)
def test_the_step_is_the_plain_one(family: Family, name: str, way: str) -> None:
    expected = updated(family, name, None)
    for tensor, values in updated(family, name, way).items():
        np.testing.assert_allclose(values, expected[tensor], rtol=1e-12, atol=1e-12, err_msg=tensor)


@few
@pytest.mark.parametrize(
    ("recompute", "name"),
    list(product([None, "full"], ["1f1b:1x2,primepar", "1f1b:1x2,summa", "1f1b:1x2,stationary"])),
)
def test_gradients_that_travel_are_wide_in_every_micro_batch(
    recompute: Recomputation | None, name: str
) -> None:
    model = ModelConfig.of("gpt2", layers=1, hidden=16, heads=4, context=4, vocabulary=20)
    plan = replace(preset_plan(name, model, 4, 8), recompute=recompute)
    program = lower_step(plan, 8, 4, options=StepOptions(wide_sums=True, masters=True))
    assert verify_program(program, name, False, 60).verdict == "proved"
    assert check(program).equal


def test_a_batch_that_micro_batches_do_not_divide_is_refused() -> None:
    settings = Settings(accumulate=3, batch=8, plan="K4")
    with pytest.raises(PlanError) as caught:
        plan_of(settings, 4)
    assert str(caught.value) == ("batch: expected a multiple of the 3 micro-batches, got 8: take 9")


def test_micro_batches_of_a_pipeline_are_not_cut_again(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    save_plan(preset_plan("1f1b:2x2,megatron", SHAPES["gpt2"], 4), file)
    with pytest.raises(ConfigError) as caught:
        plan_of(Settings(accumulate=4, batch=8, plan=str(file)), 4)
    assert str(caught.value) == (
        f"training.accumulate: expected none together with the plan file {file}, whose pipeline "
        "has 2 micro-batches, got 4: leave it out, or change micro_batches in the plan"
    )


def test_too_many_micro_batches_are_refused() -> None:
    plan = preset_plan("megatron", SHAPES["gpt2"], 4)
    with pytest.raises(ConfigError) as caught:
        planned(Settings(accumulate=100_001), plan)
    assert str(caught.value) == (
        "training.accumulate: expected at most 100,000 passes of a micro-batch through a stage, "
        "got 100,001: take fewer micro-batches"
    )


MODELS = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, embedding_dropout=0.1, dropout=0.2),
    "llama": ModelConfig.of("llama", **SIZES, kv_heads=2, ffn=64),
}
RUNS = {
    "gpt2": ("M2,megatron", list(WAYS) if IS_LONG else ["all"]),
    **({"llama": ("primepar", list(WAYS))} if IS_LONG else {}),
}


@pytest.fixture(scope="module")
def four() -> Path:
    plans = {
        family: (preset_plan(name, MODELS[family], 4, BATCH), ways)
        for family, (name, ways) in RUNS.items()
    }
    folder, answers = shared_folder(
        "memory", lambda path: on_ranks(4, memory_ranks.trained, path, plans)
    )
    runs = [
        f"{family} {run}"
        for family, (_, ways) in RUNS.items()
        for run in ("plain", *ways, "resumed")
    ]
    assert answers == [dict.fromkeys(runs, 0)] * 4
    return folder


@pytest.mark.parametrize(
    ("family", "way"), [(family, way) for family, (_, ways) in RUNS.items() for way in ways]
)
def test_four_processes_train_as_plainly(four: Path, family: str, way: str) -> None:
    got, plain = (four / f"{family} {name}" for name in (way, "plain"))
    expected = training_cases.losses(plain)
    assert list(expected) == list(range(1, STEPS + 1))
    assert training_cases.losses(got) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("family", RUNS)
def test_a_plain_run_goes_on_from_the_checkpoint(four: Path, family: str) -> None:
    expected = training_cases.losses(four / f"{family} plain")[STEPS]
    got = training_cases.losses(four / f"{family} resumed")[STEPS]
    assert got == pytest.approx(expected, rel=1e-12, abs=0)


def sent_for_updates(program: Program) -> Fraction:
    """Elements that all ranks send of gradients and of new parameters."""
    size = sizes_of(program)
    total = Fraction(0)
    for rank, nodes in enumerate(program.programs):
        for node in nodes:
            block = str(getattr(node, "block", ""))
            if ".grad" not in block and ".new" not in block:
                continue
            total += sum(times * (size(name) or 0) for name, times in sends(node, rank))
    return total


@pytest.mark.parametrize(("name", "ranks"), [("data", 4), ("data", 3), ("M2,megatron-sp", 4)])
def test_shards_are_one_copy_and_cost_no_more_to_send(name: str, ranks: int) -> None:
    """With an untied table; three replicas divide no dim of the model."""
    plan = preset_plan(name, SHAPES["llama"], ranks)
    batch = plan.row_cuts.smallest_batch(POSITIONS)
    plain, shards = (
        lower_step(chosen, batch, POSITIONS, passes=())
        for chosen in (plan, replace(plan, sharded_optimizer=True))
    )
    size = sizes_of(shards)
    held = [name for blocks in shards.initial or () for name in blocks if ".m[" in name]
    tensors = [tensor for name, tensor in (shards.tensors or {}).items() if name.endswith(".m")]
    once = sum(prod(line[-1] for line in tensor.cuts) for tensor in tensors)
    assert sum(size(name) or 0 for name in held) == once
    assert sent_for_updates(shards) == sent_for_updates(plain)
    assert verify_program(shards).verdict == "proved"
