"""Weights and biases in several blocks on a device: trained, read, written and resumed from.

No method of the library leaves a weight so, hence one of our own, `distributed_cases.Turned`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import distributed_model_cases as cases
import distributed_step_cases as steps
import numpy as np
import pytest
import torch
import torch.distributed as dist
from distributed_ranks import on_ranks
from linear_cases import Turned, arrays
from lowered_steps import shared_folder
from saved_tensors import arrays_of
from torch.distributed import FileStore  # type: ignore[attr-defined]

from primepar.distributed import full_gradient, full_parameter
from primepar.distributed.checkpoints.loading import SavedRun, load_saved, read_whole
from primepar.distributed.checkpoints.manifest import Identity
from primepar.distributed.checkpoints.saving import Checkpoints
from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.modules.weights import load_weights, save_weights
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.launch import World
from primepar.models import WeightFile, load_config, write_weights
from primepar.operators import StepInputs
from primepar.partition import registry
from primepar.plan import Plan, preset_plan
from primepar.plan.layouts import parameter_layout
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.oracle.layers import Array
from primepar.reference.oracle.transformer import Transformer

CONFIG = cases.MODELS["gpt2"]
LAYERS = range(CONFIG.layers)
NAMES = tuple(CONFIG.parameter_shapes)
RANKS = 4
GIVEN, SAVED, SHARDED = "given.safetensors", "saved.safetensors", "sharded"


def plan_apart() -> Plan:
    """A plan in which, alternating, weight or bias of a linear operator is not contiguous."""
    sequences = dict(preset_plan("data", CONFIG, RANKS).sequences)
    sequences |= dict(zip(CONFIG.linear_shapes, cycle(["H2,N2", "H2,K2"]), strict=False))
    return Plan(model=CONFIG, ranks=RANKS, sequences=sequences)


def train(folder: Path) -> dict[str, Any]:
    """On one rank: a step from a file of weights, to another one and to a checkpoint, and on."""
    with patch.dict(registry.PRIMITIVES, {"turned": Turned}):
        return _train(folder)


def _train(folder: Path) -> dict[str, Any]:
    world = World(dist.get_rank(), RANKS, torch.device("cpu"), FileStore(str(folder / "s"), RANKS))
    plan, mesh = plan_apart(), cases.mesh_of(RANKS)
    model, (state, other) = (
        PartitionedModel(plan, mesh),
        (TrainingState(plan, mesh, seed) for seed in (0, 1)),
    )
    load_weights(folder / GIVEN, model)
    load_weights(folder / GIVEN, state)
    results: dict[str, Any] = {
        "loaded": arrays({name: full_parameter(model, name) for name in NAMES})
    }
    layouts = {name: parameter_layout(model.plan, name) for name in NAMES}
    results["apart"] = [name for name, layout in layouts.items() if max(map(len, layout.held)) > 1]
    tokens_BT, targets_BT = map(torch.from_numpy, cases.batch(CONFIG))
    loss = model.loss(tokens_BT, targets_BT)
    loss.backward()  # type: ignore[no-untyped-call]
    results["loss"] = loss.item()
    results["gradients"] = arrays({name: full_gradient(model, name) for name in NAMES})
    run = StepPrograms(plan, mesh).program(len(tokens_BT), CONFIG.context, "update")
    results["trained"] = update(run, state, tokens_BT, targets_BT, StepInputs(rate=0.1))[0]
    results["stepped"] = steps.parts_of(state)
    save_weights(folder / SAVED, state, world)
    save_weights(folder / SHARDED, state, world, shard_bytes=20_000)
    identity = Identity({}, {}, "", RANKS, "0")
    with Checkpoints(folder, identity, state, world, keep=1, asynchronous=True) as saves:
        saves.begin(1, {"sample": 7})
        path = saves.finish()
    assert path is not None
    results["before"] = same(state, other)
    results["read"] = read_whole(path, world.rank, RANKS)
    load_saved(SavedRun(path, results["read"], []), other)
    results["resumed"] = same(state, other)
    return results


def same(one: TrainingState, other: TrainingState) -> bool:
    """Whether two states have the same parameters and moments on this rank."""
    assert one.blocks.keys() == other.blocks.keys()
    return all(torch.equal(block, other.blocks[name]) for name, block in one.blocks.items())


@cache
def runs() -> tuple[Path, list[dict[str, Any]]]:
    """A folder with what the ranks have written, and what each of them returned."""

    def fill(path: Path) -> list[dict[str, Any]]:
        write_weights(path / GIVEN, CONFIG, cases.parameters(CONFIG))
        return on_ranks(RANKS, train, path)

    return shared_folder("apart", fill)


@pytest.fixture
def folder() -> Path:
    return runs()[0]


@pytest.fixture
def ranks() -> list[dict[str, Any]]:
    return runs()[1]


def equal(got: cases.Arrays, expected: cases.Arrays) -> bool:
    assert got.keys() == expected.keys()
    return all(np.array_equal(got[name], array) for name, array in expected.items())


def test_weights_and_biases_are_not_contiguous(ranks: list[dict[str, Any]]) -> None:
    linears = [f"blocks.{layer}.{name}" for layer in LAYERS for name in ("qkv", "fc1")]
    others = [f"blocks.{layer}.{name}" for layer in LAYERS for name in ("proj", "fc2")]
    expected = {*(f"{name}.weight" for name in linears), *(f"{name}.bias" for name in others)}
    assert set(ranks[0]["apart"]) == expected


def test_every_rank_reads_its_own_blocks(ranks: list[dict[str, Any]]) -> None:
    assert equal(ranks[0]["loaded"], cases.parameters(CONFIG))


def check_step(loss: float, gradients: Mapping[str, Array]) -> None:
    """Loss and whole gradients are those of one device."""
    model = Transformer(CONFIG, cases.parameters(CONFIG))
    expected_loss, expected = model.loss_and_gradients(*cases.batch(CONFIG))
    assert loss == pytest.approx(expected_loss, rel=1e-10)
    assert gradients.keys() == expected.keys()
    for name, array in expected.items():
        assert np.abs(gradients[name] - array).max() < 1e-10 * np.abs(array).max(), name


def test_loss_and_gradients_are_those_of_one_device(ranks: list[dict[str, Any]]) -> None:
    check_step(ranks[0]["loss"], ranks[0]["gradients"])
    assert [(rank["loss"], rank["trained"]) for rank in ranks] == [(ranks[0]["loss"],) * 2] * RANKS


def test_emulated_devices_give_the_same() -> None:
    with patch.dict(registry.PRIMITIVES, {"turned": Turned}):
        model = EmulatedModel(CONFIG, plan_apart(), cases.parameters(CONFIG))
        step = model.loss_and_gradients(*cases.batch(CONFIG))
    check_step(step.loss, step.gradients)


def test_what_is_written_is_what_the_ranks_have(ranks: list[dict[str, Any]], folder: Path) -> None:
    file, saved = (
        WeightFile(folder / SAVED, CONFIG),
        arrays_of(folder / "step-00000001"),
    )
    given = cases.parameters(CONFIG)
    stepped = {
        name: steps.whole([rank["stepped"][name] for rank in ranks], given[name]) for name in NAMES
    }
    assert equal({name: file.read_block(name) for name in NAMES}, stepped)
    assert equal({name: saved[f"model.{name}"] for name in NAMES}, stepped)
    assert not equal(stepped, given)


def test_a_folder_in_several_files_has_the_same_weights(
    ranks: list[dict[str, Any]], folder: Path
) -> None:
    assert len(list((folder / SHARDED).glob("model-*-of-*.safetensors"))) > 2
    assert load_config(folder / SHARDED) == CONFIG
    file, sharded = (WeightFile(folder / name, CONFIG) for name in (SAVED, SHARDED))
    assert file.dtypes() == sharded.dtypes()
    wholes = ({name: given.read_block(name) for name in NAMES} for given in (file, sharded))
    assert equal(*wholes)


def test_a_run_goes_on_from_the_checkpoint(ranks: list[dict[str, Any]]) -> None:
    assert [(rank["before"], rank["read"].step, rank["resumed"]) for rank in ranks] == [
        (False, 1, True)
    ] * RANKS
    assert [rank["read"].run_state for rank in ranks] == [{"sample": 7}] * RANKS
