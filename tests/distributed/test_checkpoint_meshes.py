"""A checkpoint of one plan loads under every other one: the same state, and the same losses."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import training_cases as cases
from distributed_ranks import on_ranks
from msgspec.structs import replace
from profiles import IS_LONG, few, long

from primepar.distributed.checkpoints.loading import read_whole
from primepar.distributed.checkpoints.manifest import (
    Identity,
    Manifest,
    SavedFile,
    write_manifest,
)
from primepar.distributed.checkpoints.shards import load_state, save_part, to_save
from primepar.distributed.runtime.training_state import (
    ParameterBlock,
    TrainingState,
    places,
    shards,
)
from primepar.models import ModelConfig
from primepar.operators import state_suffixes
from primepar.plan import Plan, preset_plan, save_plan

MODEL = ModelConfig.of("gpt2", layers=2, hidden=32, heads=4, context=16, vocabulary=257)
BATCH, HALF, WHOLE = 4, 10, 20
PLANS = (
    ("primepar", 4), ("megatron", 2), ("megatron", 1), ("3d", 8), ("data", 4),
    ("1f1b:2x2,megatron", 4), ("data sharded", 4), ("megatron-sp sharded", 4),
)  # fmt: skip


def plan_of(name: str, ranks: int) -> Plan:
    """A preset plan; `sharded` keeps moments and copies in shards over replicas."""
    preset, _, sharded = name.partition(" ")
    return replace(preset_plan(preset, MODEL, ranks, BATCH), sharded_optimizer=bool(sharded))


class RankState:
    """What checkpoints use of the state of one rank, without a process of its own."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.replicas, self.replica = plan, 1, 0
        self.kinds = state_suffixes("adamw", masters=True)
        self.places = places(plan, rank)
        self.shards = shards(plan, rank) if plan.sharded_optimizer else self.places
        self.blocks = {
            (name + suffix, part.index): torch.empty(part.shape, dtype=_dtype(suffix))
            for name, suffix in product(self.places, self.kinds)
            for part in self.places_of(name, suffix)
        }

    def places_of(self, name: str, suffix: str) -> tuple[ParameterBlock, ...]:
        return (self.shards if suffix else self.places)[name]

    def block(self, name: str, part: ParameterBlock) -> torch.Tensor:
        return self.blocks[name, part.index]


def _dtype(suffix: str) -> torch.dtype:
    return torch.float32 if suffix else torch.bfloat16


def states(plan: Plan) -> list[TrainingState]:
    return [cast(TrainingState, RankState(plan, rank)) for rank in range(plan.ranks)]


def drawn() -> dict[str, torch.Tensor]:
    """Every tensor of the state, whole."""
    generator = torch.Generator().manual_seed(1)
    return {
        name + suffix: torch.randn(shape, generator=generator).to(_dtype(suffix))
        for name, shape in MODEL.parameter_shapes.items()
        for suffix in state_suffixes("adamw", masters=True)
    }


def fill(state: TrainingState, wholes: dict[str, torch.Tensor]) -> None:
    """Set the blocks of a rank to their places in the whole; padding is zero."""
    for name, suffix in product(MODEL.parameter_shapes, state.kinds):
        for part in state.places_of(name, suffix):
            part.fill(state.block(name + suffix, part), wholes[name + suffix].__getitem__)


def save(plan: Plan, path: Path) -> None:
    """Write the drawn state under a plan, rank after rank."""
    path.mkdir()
    wholes, files = drawn(), dict[str, SavedFile]()
    for rank, state in enumerate(states(plan)):
        fill(state, wholes)
        files |= save_part(path, rank, to_save(state, copied=False))
    write_manifest(path, Manifest(1, Identity({}, {}, "", plan.ranks, "0"), {}, files))


@few
@pytest.mark.parametrize("number", range(len(PLANS)), ids=[f"{n} on {r}" for n, r in PLANS])
def test_every_plan_loads_the_state_bit_by_bit(number: int, tmp_path: Path) -> None:
    """Each plan loads what the one before has saved; in the long profile, what each has saved."""
    path, wholes = tmp_path / "step-00000001", drawn()
    save(plan_of(*PLANS[number - 1]), path)
    read_whole(path)
    for plan in (plan_of(*loaded) for loaded in (PLANS if IS_LONG else PLANS[number:][:1])):
        for state, expected in zip(states(plan), states(plan), strict=True):
            fill(expected, wholes)
            load_state(path, state, replicas=1)
            blocks, right = (cast(RankState, of).blocks for of in (state, expected))
            assert all(torch.equal(block, right[name]) for name, block in blocks.items())


@long
def test_a_run_on_four_goes_on_under_other_plans_on_two_one_and_eight(tmp_path: Path) -> None:
    """The losses after the stop are those of the run that was not stopped."""
    files = {}
    for name, ranks in PLANS[:4]:
        files[ranks] = tmp_path / f"{name}-{ranks}.json"
        save_plan(plan_of(name, ranks), files[ranks])

    def run(ranks: int, name: str, **changes: Any) -> dict[int, float]:
        folder = tmp_path / name
        answers = (
            [cases.train_plan(folder, files[ranks], changes)]
            if ranks == 1
            else on_ranks(ranks, cases.train_plan, folder, files[ranks], changes)
        )
        assert answers == [0] * ranks
        return cases.losses(folder)

    straight = run(4, "straight", steps=WHOLE)
    run(4, "stopped", steps=HALF, checkpoint=str(tmp_path / "saved"))
    expected = {step: straight[step] for step in range(HALF + 1, WHOLE + 1)}
    for ranks in (2, 1, 8):
        cases.keep(tmp_path / "saved", tmp_path / f"on-{ranks}", HALF)
        changes = {"checkpoint": str(tmp_path / f"on-{ranks}"), "resume": True}
        losses = run(ranks, f"run-{ranks}", steps=WHOLE, **changes)
        assert losses == pytest.approx(expected, rel=1e-9, abs=0)
        off = max(abs(losses[step] / loss - 1) for step, loss in expected.items())
        print(f"{ranks} ranks: {off:.1e} off at most")
