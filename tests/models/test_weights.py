"""Weights under Hugging Face names: any block out of a file, and whole files back.

The oracle is the transformers library: it makes the files, and loads ours.
"""

from __future__ import annotations

import json
from itertools import cycle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CONFIGS, OURS, Saved, drawn, saved_model
from safetensors.torch import load_file, save_file
from weight_oracle import Array, expected_parameters

from primepar.errors import WeightError
from primepar.models import ModelConfig, WeightFile, load_config, write_weights
from primepar.models.config_json import config_content
from primepar.models.tensor_file import StoredTensor, stored


@pytest.fixture(scope="module", params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_model(request.param, tmp_path_factory.mktemp(request.param))


def whole_parameters(file: WeightFile) -> dict[str, Any]:
    return {name: file.read_block(name) for name in file.config.parameter_shapes}


# Reading


def test_every_parameter_is_theirs_in_our_order(saved: Saved) -> None:
    expected = expected_parameters(saved)
    loaded = whole_parameters(WeightFile(saved.folder, saved.config))
    assert loaded.keys() == expected.keys()
    for name, value in loaded.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_any_slice_is_that_slice_of_the_whole(saved: Saved) -> None:
    file = WeightFile(saved.folder / "model.safetensors", saved.config)
    random = np.random.default_rng(0)
    for name, value in expected_parameters(saved).items():
        for _ in range(20):
            cuts = [sorted(random.integers(0, size + 1, 2)) for size in value.shape]
            slices = tuple(slice(int(begin), int(end)) for begin, end in cuts)
            np.testing.assert_array_equal(file.read_block(name, slices), value[slices])


def test_a_slice_reads_as_many_elements_as_it_has(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(tensor: StoredTensor, slices: tuple[slice, ...]) -> Array:
        block = original(tensor, slices)
        read.append(block.size)
        return np.asarray(block, np.float32)

    file = WeightFile(saved.folder, saved.config)
    original = StoredTensor.read
    monkeypatch.setattr(StoredTensor, "read", counted)
    for name, shape in saved.config.parameter_shapes.items():
        read.clear()
        block = file.read_block(name, tuple(slice(size // 3, size // 2) for size in shape))
        assert sum(read) == block.size == prod(size // 2 - size // 3 for size in shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_read_exactly(tmp_path: Path, dtype: str) -> None:
    saved = saved_model("llama", tmp_path, dtype)
    block = WeightFile(tmp_path, saved.config).read_block("blocks.0.proj.weight")
    expected = saved.model.state_dict()["model.layers.0.self_attn.o_proj.weight"].float().numpy().T
    assert block.dtype == (np.float16 if dtype == "float16" else np.float32)
    np.testing.assert_array_equal(block, expected)


def test_a_slice_over_the_end_is_cut_there(saved: Saved) -> None:
    file = WeightFile(saved.folder, saved.config)
    assert file.read_block("embedding.token", (slice(20, 24), slice(0, 2))).shape == (1, 2)


def test_a_model_in_several_files_is_read_through_its_index(saved: Saved, tmp_path: Path) -> None:
    saved.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole = whole_parameters(WeightFile(saved.folder, saved.config))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        loaded = whole_parameters(WeightFile(path, saved.config))
        assert all(np.array_equal(loaded[name], whole[name]) for name in whole)


def test_a_model_saved_without_its_head_lacks_the_prefix(saved: Saved, tmp_path: Path) -> None:
    saved.model.base_model.save_pretrained(tmp_path)
    if not saved.config.tied:
        with pytest.raises(WeightError) as error:
            WeightFile(tmp_path, saved.config)
        assert str(error.value) == (
            f"{tmp_path}: expected the tensor 'lm_head.weight', got none: give the weights that "
            f"belong to this {saved.config.family} configuration"
        )
        return
    loaded = whole_parameters(WeightFile(tmp_path, saved.config))
    expected = whole_parameters(WeightFile(saved.folder, saved.config))
    assert all(np.array_equal(loaded[name], expected[name]) for name in expected)


# Writing


def test_what_is_written_loads_in_transformers(saved: Saved, tmp_path: Path) -> None:
    parameters = whole_parameters(WeightFile(saved.folder, saved.config))
    content = json.dumps(config_content(saved.config))
    (tmp_path / "config.json").write_text(content)
    write_weights(tmp_path / "model.safetensors", saved.config, parameters)
    model, report = type(saved.model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert load_config(tmp_path) == load_config(saved.folder)
    expected = saved.model.state_dict()
    if saved.config.family == "opt":
        expected["model.decoder.embed_positions.weight"][:2] = 0
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        assert np.array_equal(value.numpy(), expected[name].numpy()), name


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("config", [OURS, *CONFIGS.values()], ids=["gpt", *CONFIGS])
def test_what_is_written_is_read_again_to_the_bit(
    tmp_path: Path, config: ModelConfig, dtype: str
) -> None:
    parameters = {name: value.astype(dtype) for name, value in drawn(config).items()}
    write_weights(tmp_path / "model.safetensors", config, parameters)
    loaded = whole_parameters(WeightFile(tmp_path, config))
    for name, value in parameters.items():
        assert loaded[name].dtype == value.dtype
        np.testing.assert_array_equal(loaded[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", "bfloat16"), ("gpt2", "bfloat16"), ("opt", "float16")]
)
def test_what_is_written_like_a_file_has_its_types_and_bits(
    tmp_path: Path, name: str, dtype: str
) -> None:
    saved = saved_model(name, tmp_path / "theirs", dtype)
    file = WeightFile(saved.folder, saved.config)
    parameters = whole_parameters(file)
    write_weights(tmp_path / "model.safetensors", saved.config, parameters, like=file)
    ours = load_file(tmp_path / "model.safetensors")
    theirs = load_file(saved.folder / "model.safetensors")
    if name == "opt":
        theirs["model.decoder.embed_positions.weight"][:2] = 0
    assert ours.keys() == theirs.keys()
    for tensor, value in theirs.items():
        assert ours[tensor].dtype == value.dtype == getattr(torch, dtype)
        assert torch.equal(ours[tensor], value), tensor


def test_each_tensor_is_written_in_the_type_of_its_own_name(saved: Saved, tmp_path: Path) -> None:
    kinds = cycle((torch.bfloat16, torch.float16, torch.float64))
    theirs = load_file(saved.folder / "model.safetensors")
    mixed = {name: tensor.to(next(kinds)) for name, tensor in theirs.items()}
    save_file(mixed, tmp_path / "mixed.safetensors")
    like = WeightFile(tmp_path / "mixed.safetensors", saved.config)
    parameters = whole_parameters(WeightFile(saved.folder, saved.config))
    write_weights(tmp_path / "model.safetensors", saved.config, parameters, like=like)
    ours = load_file(tmp_path / "model.safetensors")
    if saved.config.family == "opt":
        mixed["model.decoder.embed_positions.weight"][:2] = 0
    assert ours.keys() == mixed.keys()
    for tensor, value in mixed.items():
        assert ours[tensor].dtype == value.dtype
        assert torch.equal(ours[tensor], value), tensor


def test_types_are_reported_by_the_names_with_the_head(saved: Saved, tmp_path: Path) -> None:
    if saved.config.tied:
        saved.model.base_model.save_pretrained(tmp_path)
        whole = WeightFile(saved.folder, saved.config).dtypes()
        assert WeightFile(tmp_path, saved.config).dtypes() == whole
        assert set(whole.values()) == {"F32"}


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    numbers = ~np.isnan(values)
    ours = torch.from_numpy(stored(values, "BF16").view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours[numbers], expected[numbers])
    assert torch.isnan(ours[~numbers]).all()
