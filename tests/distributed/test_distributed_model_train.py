"""Training under plans: the same run on any mesh, through checkpoints and weight files."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_cases as cases
from command import run
from distributed_ranks import on_ranks
from lowered_steps import shared_folder
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from saved_tensors import arrays_of, tensors_of

from primepar.distributed.training.log import StartRow, read_log
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of, sizes_of
from primepar.errors import ConfigError, PlanError
from primepar.models import ModelConfig, WeightFile, write_weights
from primepar.models.names import sources
from primepar.plan import preset_plan, save_plan

LLAMA = ModelConfig.of(
    "llama", layers=2, hidden=16, heads=8, kv_heads=4, context=16, vocabulary=259, ffn=24,
    head_dim=4, tied=True, dropout=0.1,
)  # fmt: skip
OPT = ModelConfig.of("opt", layers=1, hidden=16, heads=4, context=16, vocabulary=257)
GPT_LIKE = ModelConfig.of("gpt", layers=1, hidden=16, heads=4, context=16, vocabulary=257)
BATCH = 4


def plan_file(
    folder: Path, name: str, ranks: int, model: ModelConfig = LLAMA, batch: int | None = BATCH
) -> str:
    path = folder / f"{model.family}-{name}-{ranks}-{batch}.json"
    if not path.exists():
        save_plan(preset_plan(name, model, ranks, batch), path)
    return str(path)


def four_ranks(folder: Path) -> list[Any]:
    """A run under one plan that goes on under another, one on parts of a single sequence, and one
    from and to weight files."""
    first, second, parts, opt = (folder / name for name in ("first", "second", "parts", "opt"))
    saved, weights = str(folder / "saved"), str(folder / "weights.safetensors")
    given: dict[str, Any] = {"save_weights": weights, "checkpoint": saved}
    sp, chain = plan_file(folder, "megatron-sp", 4), plan_file(folder, "stationary", 4)
    return [
        cases.train(first, plan=sp, steps=3, checkpoint=saved),
        cases.train(second, plan=chain, steps=6, resume=True, **given),
        cases.train(parts, plan=plan_file(folder, "data", 4, batch=1), steps=3),
        cases.train(
            opt,
            plan=plan_file(folder, "primepar", 4, OPT),
            steps=1,
            weights=str(folder / "opt.safetensors"),
            save_weights=str(folder / "opt-after.safetensors"),
        ),
        cases.train(
            folder / "half",
            plan=plan_file(folder, "primepar", 4, OPT),
            steps=1,
            weights=str(folder / "half.safetensors"),
            save_weights=str(folder / "half-after.safetensors"),
            checkpoint=str(folder / "half-saved"),
        ),
    ]


def halves(whole: Path, path: Path) -> None:
    """Write the tensors of a file, alternating, as bfloat16 and as float16."""
    kinds = cycle((torch.bfloat16, torch.float16))
    save_torch({name: tensor.to(next(kinds)) for name, tensor in load_torch(whole).items()}, path)


@pytest.fixture(scope="module")
def runs() -> Path:
    """What one process and then four have left in a folder."""
    return shared_folder("plans", train_all)[0]


def train_all(folder: Path) -> None:
    for name in ("megatron-sp", "stationary"):
        plan_file(folder, name, 4)
    plan_file(folder, "primepar", 4, OPT)
    plan_file(folder, "data", 4, batch=1)
    single = plan_file(folder, "data", 1, batch=1)
    assert cases.train(folder / "single", plan=single, steps=3) == 0
    one = plan_file(folder, "data", 1)
    weights = str(folder / "one.safetensors")
    assert cases.train(folder / "one", plan=one, steps=6, save_weights=weights) == 0
    opt = plan_file(folder, "data", 1, OPT)
    before, after = str(folder / "opt.safetensors"), str(folder / "opt-one.safetensors")
    assert cases.train(folder / "before", plan=opt, steps=2, seed=5, save_weights=before) == 0
    assert cases.train(folder / "after", plan=opt, steps=1, weights=before, save_weights=after) == 0
    halves(Path(before), folder / "half.safetensors")
    assert on_ranks(4, four_ranks, folder) == [[0, 0, 0, 0, 0]] * 4


def test_losses_under_plans_are_those_of_one_process(runs: Path) -> None:
    expected = cases.losses(runs / "one")
    got = cases.losses(runs / "first") | cases.losses(runs / "second")
    assert list(got) == list(range(1, 7))
    assert got == pytest.approx(expected, rel=1e-9, abs=0)
    assert cases.losses(runs / "opt") == pytest.approx(cases.losses(runs / "after"), rel=1e-9)


def test_losses_on_parts_of_a_sequence_are_those_of_one_process(runs: Path) -> None:
    expected = cases.losses(runs / "single")
    assert list(expected) == [1, 2, 3]
    assert cases.losses(runs / "parts") == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize(("got", "expected"), [("weights", "one"), ("opt-after", "opt-one")])
def test_weights_written_by_four_are_those_of_one(runs: Path, got: str, expected: str) -> None:
    written, other = (load_file(runs / f"{name}.safetensors") for name in (got, expected))
    assert written.keys() == other.keys()
    for name, tensor in other.items():
        assert np.abs(written[name] - tensor).max() < 1e-9, name
    assert not list(runs.glob("*.part"))


def test_weights_are_what_the_checkpoint_has_in_hugging_face_names(runs: Path) -> None:
    weights = WeightFile(runs / "weights.safetensors", LLAMA)
    checkpoint = arrays_of(runs / "saved" / "step-00000006")
    assert set(load_file(weights.path)) == {
        source.tensor for name in LLAMA.parameter_shapes for source in sources(LLAMA, name)
    }
    for name, shape in LLAMA.parameter_shapes.items():
        assert checkpoint[f"model.{name}"].shape == shape
        assert np.array_equal(weights.read_block(name), checkpoint[f"model.{name}"]), name


def test_weights_keep_the_types_of_the_file_that_they_came_from(runs: Path) -> None:
    written = load_torch(runs / "half-after.safetensors")
    given = load_torch(runs / "half.safetensors")
    assert {name: tensor.dtype for name, tensor in written.items()} == {
        name: tensor.dtype for name, tensor in given.items()
    }
    assert not all(torch.equal(written[name], given[name]) for name in given)
    checkpoint = arrays_of(runs / "half-saved" / "step-00000001")
    trained = {name: checkpoint[f"model.{name}"] for name in OPT.parameter_shapes}
    expected = runs / "half-expected.safetensors"
    write_weights(expected, OPT, trained, like=WeightFile(runs / "half.safetensors", OPT))
    assert expected.read_bytes() == (runs / "half-after.safetensors").read_bytes()


def test_weights_of_a_run_that_began_with_none_have_its_type(tmp_path: Path) -> None:
    path, saved = tmp_path / "after.safetensors", tmp_path / "saved"
    given: dict[str, Any] = {
        "dtype": "bfloat16",
        "save_weights": str(path),
        "checkpoint": str(saved),
    }
    plan = plan_file(tmp_path, "data", 1, GPT_LIKE)
    assert cases.train(tmp_path / "run", plan=plan, steps=1, **given) == 0
    written = load_torch(path)
    checkpoint = tensors_of(saved / "step-00000001")
    assert written.keys() == GPT_LIKE.parameter_shapes.keys()
    for name, tensor in written.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, checkpoint[f"model.{name}"]), name


def test_a_log_names_the_plan_and_has_its_model(runs: Path) -> None:
    start = read_log(runs / "first" / "log.jsonl")[0]
    assert isinstance(start, StartRow)
    assert (start.sequence, start.model) == (plan_file(runs, "megatron-sp", 4), LLAMA)
    assert (start.batch, start.settings.batch, start.settings.layers) == (BATCH, None, None)
    assert start.parameters == LLAMA.parameters


def test_weights_of_another_model_are_refused(runs: Path, tmp_path: Path) -> None:
    weights = runs / "opt.safetensors"
    answer = cases.train(
        tmp_path / "run", plan=plan_file(runs, "data", 1), weights=str(weights), steps=1
    )
    assert answer == (
        f"WeightError: {weights}: expected the tensor 'model.embed_tokens.weight', got none: "
        "give the weights that belong to this llama configuration"
    )
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_checkpoint_of_another_model_is_refused(runs: Path, tmp_path: Path) -> None:
    answer = cases.train(
        tmp_path / "run",
        plan=plan_file(runs, "data", 1, OPT),
        steps=9,
        checkpoint=str(runs / "saved"),
        resume=True,
    )
    start = f"CheckpointError: {runs / 'saved' / 'step-00000006'}: expected a checkpoint"
    assert answer.startswith(f"{start} of a model with model.family=opt model.layers=1 ")
    assert "got one with model.family=llama model.layers=2 " in answer
    assert answer.endswith(": give the settings of that run")


def test_a_plan_for_other_processes_is_refused_before_they_meet(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "megatron", 4)
    done = run("train", "--plan", path, "--ranks", "2")
    assert (done.code, done.err.strip()) == (
        2,
        "primepar: error: plan: expected 4 devices, as it was made for, got 2: "
        "start 4 processes, or make a plan for 2",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("layers", "4"), ("layers", "2"), ("hidden", "192"), ("heads", "4"), ("context", "128"),
     ("vocabulary", "256")],
)  # fmt: skip
def test_what_a_plan_defines_is_refused_together_with_it_even_where_it_is_the_same(
    key: str, value: str, tmp_path: Path
) -> None:
    path = plan_file(tmp_path, "megatron", 4)
    done = run("train", "--plan", path, "--set", f"model.{key}={value}", "--ranks", "4")
    assert done == (
        2,
        "",
        f"primepar: error: model.{key}: expected none together with the plan file {path}, which "
        f"has a model, got {value}: leave one of the two out\n",
    )


@pytest.mark.parametrize("batch", ["4", "6", "8"])
def test_a_batch_together_with_a_plan_that_has_one_is_refused(batch: str, tmp_path: Path) -> None:
    path = plan_file(tmp_path, "data", 4)
    done = run("train", "--plan", path, "--set", f"training.batch={batch}", "--ranks", "4")
    assert done == (
        2,
        "",
        f"primepar: error: training.batch: expected none together with the plan file {path}, which "
        f"has a batch of 4, got {batch}: leave it out, or take a plan for this one\n",
    )


def test_a_plan_without_a_batch_takes_that_of_the_option_or_eight(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    save_plan(preset_plan("data", LLAMA, 4), path)
    for settings, batch in (
        (Settings(plan=str(path)), 8),
        (Settings(plan=str(path), batch=12), 12),
    ):
        assert sizes_of(settings, plan_of(settings, 4)) == (batch, LLAMA.context)
    plan_of(Settings(plan=str(path), batch=2), 4)
    with pytest.raises(PlanError) as caught:
        plan_of(Settings(plan=str(path), batch=3), 4)
    assert str(caught.value) == (
        "batch: expected a multiple or a divisor of the 4 slices of the rows in "
        "blocks.0.attention, got 3: take 4"
    )


def test_a_model_that_cannot_read_bytes_is_refused(tmp_path: Path) -> None:
    small = ModelConfig.of("opt", layers=1, hidden=16, heads=4, context=16, vocabulary=100)
    path = plan_file(tmp_path, "data", 1, small)
    with pytest.raises(ConfigError) as caught:
        plan_of(Settings(plan=path), 1)
    assert str(caught.value) == (
        f"--plan {path}: expected a model with a vocabulary of 256 or more, one entry for each "
        "byte, got 100: take another model"
    )
