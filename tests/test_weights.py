"""Weights under Hugging Face names: any block out of a file, whole files back, wrong ones refused.

The oracle is the transformers library: it makes the files, and loads ours.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from model_cases import CONFIGS, Saved, saved_model
from numpy.typing import NDArray

from primepar.errors import WeightError
from primepar.models import GPTConfig, ModelConfig, WeightFile, initial_parameter, write_weights
from primepar.models.tensor_file import StoredTensor

Array = NDArray[np.float32]


@pytest.fixture(scope="module", params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_model(request.param, tmp_path_factory.mktemp(request.param))


# Their tensors as our parameters, said once more and in another way than in primepar.models


def by_groups(config: ModelConfig, q: Array, k: Array, v: Array) -> Array:
    """Columns (.., A D), (.., G D), (.., G D) -> the columns of qkv."""
    parts = [part.reshape(*part.shape[:-1], config.kv_heads, -1) for part in (q, k, v)]
    return np.concatenate(parts, -1).reshape(*q.shape[:-1], -1)


def in_pairs(gate: Array, up: Array) -> Array:
    return np.stack([gate, up], -1).reshape(*gate.shape[:-1], -1)


def gpt2_parameters(saved: Saved) -> dict[str, Array]:
    found = {
        "embedding.token": saved.tensor("transformer.wte.weight"),
        "embedding.position": saved.tensor("transformer.wpe.weight"),
    }
    for leaf in ("weight", "bias"):
        found[f"norm.{leaf}"] = saved.tensor(f"transformer.ln_f.{leaf}")
        for layer in range(saved.config.layers):
            ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
            qkv = np.split(saved.tensor(f"{theirs}.attn.c_attn.{leaf}"), 3, axis=-1)
            found[f"{ours}.qkv.{leaf}"] = by_groups(saved.config, *qkv)
            found[f"{ours}.proj.{leaf}"] = saved.tensor(f"{theirs}.attn.c_proj.{leaf}")
            found[f"{ours}.norm1.{leaf}"] = saved.tensor(f"{theirs}.ln_1.{leaf}")
            found[f"{ours}.norm2.{leaf}"] = saved.tensor(f"{theirs}.ln_2.{leaf}")
            found[f"{ours}.fc1.{leaf}"] = saved.tensor(f"{theirs}.mlp.c_fc.{leaf}")
            found[f"{ours}.fc2.{leaf}"] = saved.tensor(f"{theirs}.mlp.c_proj.{leaf}")
    return found


def opt_parameters(saved: Saved) -> dict[str, Array]:
    root = "model.decoder"
    found = {
        "embedding.token": saved.tensor(f"{root}.embed_tokens.weight"),
        "embedding.position": saved.tensor(f"{root}.embed_positions.weight")[2:],
    }
    for leaf in ("weight", "bias"):
        found[f"norm.{leaf}"] = saved.tensor(f"{root}.final_layer_norm.{leaf}")
        for layer in range(saved.config.layers):
            ours, theirs = f"blocks.{layer}", f"{root}.layers.{layer}"
            found[f"{ours}.norm1.{leaf}"] = saved.tensor(f"{theirs}.self_attn_layer_norm.{leaf}")
            found[f"{ours}.norm2.{leaf}"] = saved.tensor(f"{theirs}.final_layer_norm.{leaf}")
            if leaf == "weight" or saved.config.mlp_bias:
                q, k, v, proj = (
                    saved.tensor(f"{theirs}.self_attn.{name}.{leaf}").T
                    for name in ("q_proj", "k_proj", "v_proj", "out_proj")
                )
                found[f"{ours}.qkv.{leaf}"] = by_groups(saved.config, q, k, v)
                found[f"{ours}.proj.{leaf}"] = proj
                found[f"{ours}.fc1.{leaf}"] = saved.tensor(f"{theirs}.fc1.{leaf}").T
                found[f"{ours}.fc2.{leaf}"] = saved.tensor(f"{theirs}.fc2.{leaf}").T
    return found


def llama_parameters(saved: Saved) -> dict[str, Array]:
    found = {
        "embedding.token": saved.tensor("model.embed_tokens.weight"),
        "norm.weight": saved.tensor("model.norm.weight"),
    }
    leaves = ("weight", "bias") if saved.config.mlp_bias else ("weight",)
    for layer in range(saved.config.layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        found[f"{ours}.norm1.weight"] = saved.tensor(f"{theirs}.input_layernorm.weight")
        found[f"{ours}.norm2.weight"] = saved.tensor(f"{theirs}.post_attention_layernorm.weight")
        for leaf in leaves:
            q, k, v, proj = (saved.tensor(f"{theirs}.self_attn.{n}_proj.{leaf}").T for n in "qkvo")
            found[f"{ours}.qkv.{leaf}"] = by_groups(saved.config, q, k, v)
            found[f"{ours}.proj.{leaf}"] = proj
            gate, up, down = (
                saved.tensor(f"{theirs}.mlp.{n}_proj.{leaf}").T for n in ("gate", "up", "down")
            )
            found[f"{ours}.fc1.{leaf}"] = in_pairs(gate, up)
            found[f"{ours}.fc2.{leaf}"] = down
    return found


def bloom_parameters(saved: Saved) -> dict[str, Array]:
    found = {"embedding.token": saved.tensor("transformer.word_embeddings.weight")}
    for leaf in ("weight", "bias"):
        norm = f"transformer.word_embeddings_layernorm.{leaf}"
        found[f"embedding.norm.{leaf}"] = saved.tensor(norm)
        found[f"norm.{leaf}"] = saved.tensor(f"transformer.ln_f.{leaf}")
        for layer in range(saved.config.layers):
            ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
            norm = f"{theirs}.post_attention_layernorm.{leaf}"
            found[f"{ours}.norm1.{leaf}"] = saved.tensor(f"{theirs}.input_layernorm.{leaf}")
            found[f"{ours}.norm2.{leaf}"] = saved.tensor(norm)
            qkv = saved.tensor(f"{theirs}.self_attention.query_key_value.{leaf}")
            found[f"{ours}.qkv.{leaf}"] = qkv.T
            found[f"{ours}.proj.{leaf}"] = saved.tensor(f"{theirs}.self_attention.dense.{leaf}").T
            found[f"{ours}.fc1.{leaf}"] = saved.tensor(f"{theirs}.mlp.dense_h_to_4h.{leaf}").T
            found[f"{ours}.fc2.{leaf}"] = saved.tensor(f"{theirs}.mlp.dense_4h_to_h.{leaf}").T
    return found


def expected_parameters(saved: Saved) -> dict[str, Array]:
    by_family = {
        "gpt2": gpt2_parameters,
        "opt": opt_parameters,
        "llama": llama_parameters,
        "bloom": bloom_parameters,
    }
    found = by_family[saved.config.family](saved)
    if not saved.config.tied:
        found["head.weight"] = saved.tensor("lm_head.weight").T
    return found


def whole_parameters(file: WeightFile) -> dict[str, Any]:
    return {name: file.read_block(name) for name in file.config.parameter_shapes}


# Reading


def test_every_parameter_is_theirs_in_our_order(saved: Saved) -> None:
    expected = expected_parameters(saved)
    found = whole_parameters(WeightFile(saved.folder, saved.config))
    assert found.keys() == expected.keys()
    for name, value in found.items():
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


OURS = GPTConfig(layers=1, hidden=4, heads=2, context=3, vocabulary=5)
LLAMA = CONFIGS["llama"]


def drawn(config: ModelConfig) -> dict[str, Any]:
    return {name: initial_parameter(config, name, seed=1) for name in config.parameter_shapes}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_weights(path, LLAMA, drawn(LLAMA))
    return path


def test_a_slice_over_the_end_is_cut_there(written: Path) -> None:
    block = WeightFile(written, LLAMA).read_block("embedding.token", (slice(20, 24), slice(0, 2)))
    assert block.shape == (1, 2)


def test_a_model_in_several_files_is_read_through_its_index(saved: Saved, tmp_path: Path) -> None:
    saved.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole = whole_parameters(WeightFile(saved.folder, saved.config))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        found = whole_parameters(WeightFile(path, saved.config))
        assert all(np.array_equal(found[name], whole[name]) for name in whole)


def test_a_model_saved_without_its_head_lacks_the_prefix(saved: Saved, tmp_path: Path) -> None:
    saved.model.base_model.save_pretrained(tmp_path)
    if not saved.config.tied:
        assert refused(tmp_path, saved.config) == (
            f"{tmp_path}: expected the tensor 'lm_head.weight', got none: give the weights that "
            f"belong to this {saved.config.family} configuration"
        )
        return
    found = whole_parameters(WeightFile(tmp_path, saved.config))
    expected = whole_parameters(WeightFile(saved.folder, saved.config))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


# Writing


def test_what_is_written_loads_in_transformers(saved: Saved, tmp_path: Path) -> None:
    parameters = whole_parameters(WeightFile(saved.folder, saved.config))
    shutil.copy(saved.folder / "config.json", tmp_path)
    write_weights(tmp_path / "model.safetensors", saved.config, parameters)
    model, report = type(saved.model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
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
    found = whole_parameters(WeightFile(tmp_path, config))
    for name, value in parameters.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


# Wrong files


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the tensors of a file through its own library."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refused(path: Path, config: ModelConfig = LLAMA) -> str:
    with pytest.raises(WeightError) as error:
        WeightFile(path, config)
    return str(error.value)


BELONG = "give the weights that belong to this llama configuration"


def test_a_missing_tensor_is_refused(written: Path) -> None:
    rewritten(written, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert refused(written) == (
        f"{written}: expected the tensor 'model.layers.1.mlp.up_proj.weight', got none: {BELONG}"
    )


def test_an_extra_tensor_is_refused(written: Path) -> None:
    rewritten(written, lambda tensors: tensors.update(more=np.zeros((2, 3))))
    assert refused(written) == f"{written}: expected no tensor 'more', got one of (2, 3): {BELONG}"


def test_a_tensor_of_another_shape_is_refused(written: Path) -> None:
    rewritten(written, lambda tensors: tensors.update({"lm_head.weight": np.zeros((24, 21))}))
    assert refused(written) == (
        f"{written}: tensor 'lm_head.weight': expected shape (21, 24), got (24, 21): {BELONG}"
    )


def test_a_tensor_that_is_no_float_is_refused(written: Path) -> None:
    integers = np.zeros((21, 24), np.int8)
    rewritten(written, lambda tensors: tensors.update({"lm_head.weight": integers}))
    assert refused(written) == (
        f"{written}: tensor 'lm_head.weight': expected one of F64, F32, F16, BF16, got I8: "
        "convert the weights first"
    )


def test_a_file_of_another_model_is_refused(written: Path) -> None:
    config = ModelConfig.of("gpt2", layers=1, hidden=4, heads=2, context=3, vocabulary=5)
    assert refused(written, config) == (
        f"{written}: expected the tensor 'wte.weight', got none: give the weights that belong to "
        "this gpt2 configuration"
    )


def test_buffers_of_old_files_are_passed_over(written: Path) -> None:
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3)}
    rewritten(written, lambda tensors: tensors.update(buffer))
    assert WeightFile(written, LLAMA).read_block("norm.weight").all()


def test_a_copy_of_a_tied_head_is_passed_over(tmp_path: Path) -> None:
    config, path = CONFIGS["llama-tied"], tmp_path / "model.safetensors"
    write_weights(path, config, drawn(config))
    copy = {"lm_head.weight": drawn(config)["embedding.token"]}
    rewritten(path, lambda tensors: tensors.update(copy))
    assert WeightFile(path, config).read_block("norm.weight").all()


def test_a_head_that_is_not_the_tied_table_is_refused(tmp_path: Path) -> None:
    config, path = CONFIGS["llama-tied"], tmp_path / "model.safetensors"
    write_weights(path, config, drawn(config))
    other = {"lm_head.weight": drawn(config)["embedding.token"][::-1].copy()}
    rewritten(path, lambda tensors: tensors.update(other))
    assert refused(path, config) == (
        f"{path}: tensor 'lm_head.weight': expected the token table, as the configuration ties "
        "them, got another: set tie_word_embeddings to false"
    )


def test_a_file_cut_short_is_refused(written: Path) -> None:
    content = written.read_bytes()
    written.write_bytes(content[:-1])
    assert refused(written) == (
        f"{written}: expected {len(content)} bytes by its header, got {len(content) - 1}: the file "
        "is cut short, fetch it again"
    )


def test_a_file_with_more_than_its_header_says_is_refused(written: Path) -> None:
    content = written.read_bytes()
    written.write_bytes(content + b"0")
    assert refused(written) == (
        f"{written}: expected {len(content)} bytes by its header, got {len(content) + 1}: the file "
        "is damaged, fetch it again"
    )


@pytest.mark.parametrize("content", [b"", b"1234567", b"version https://git-lfs", b"\2" + bytes(8)])
def test_a_file_that_does_not_hold_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert refused(path) == (
        f"{path}: expected a safetensors file, got {len(content)} bytes that do not hold its "
        "header: the file is cut short or of another kind, fetch it again"
    )


def with_header(path: Path, text: bytes) -> Path:
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def test_a_header_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = with_header(tmp_path / "model.safetensors", b"[1]")
    assert refused(path) == (
        f"{path}: expected a safetensors header, got Expected `object`, got `array`"
    )


def test_an_entry_without_its_shape_is_refused(tmp_path: Path) -> None:
    path = with_header(tmp_path / "model.safetensors", b'{"a": {"dtype": "F32"}}')
    assert refused(path) == f"{path}: tensor 'a': Object missing required field `shape`"


def test_an_entry_of_another_length_than_its_shape_is_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 8]}
    path = with_header(tmp_path / "model.safetensors", json.dumps({"a": entry}).encode())
    assert refused(path) == (
        f"{path}: tensor 'a': expected 24 bytes for F32 of shape (2, 3), got 8: the file is "
        "damaged, fetch it again"
    )


def test_no_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    message = f"{path}: expected a safetensors file, got no such file or directory"
    assert [refused(path), refused(tmp_path)] == [message, message]


def test_a_missing_file_of_an_index_is_told(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm.weight": "model-1.safetensors"}}))
    assert refused(tmp_path) == (
        f"{tmp_path / 'model-1.safetensors'}: expected a safetensors file, got no such file or "
        "directory"
    )


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"norm.weight": "../other.safetensors"}}))
    assert refused(index) == (
        f"{index}: expected files beside the index, got '../other.safetensors'"
    )


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    assert refused(index) == f"{index}: expected an index, got no such file or directory"
    index.write_text("{}")
    assert refused(index) == (
        f"{index}: expected an index of safetensors files, got Object missing required field "
        "`weight_map`"
    )


def test_an_unknown_parameter_is_refused(written: Path) -> None:
    with pytest.raises(WeightError) as error:
        WeightFile(written, LLAMA).read_block("norm.bias")
    assert str(error.value) == (
        "parameter 'norm.bias': expected a name of ModelConfig.parameter_shapes, like "
        "'blocks.0.qkv.weight'"
    )


# Wrong parameters: nothing is written


def not_written(path: Path, parameters: dict[str, Any], config: ModelConfig = OURS) -> str:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(WeightError) as error:
        write_weights(path, config, parameters)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not path.with_name(f"{path.name}.part").exists()
    return str(error.value)


def test_a_missing_parameter_is_refused(written: Path) -> None:
    parameters = drawn(OURS)
    del parameters["norm.bias"]
    assert not_written(written, parameters) == "parameters: expected 'norm.bias', got none"


def test_a_parameter_of_another_model_is_refused(tmp_path: Path) -> None:
    parameters = drawn(OURS) | {"norm.scale": np.zeros(4)}
    assert not_written(tmp_path / "new", parameters) == (
        "parameter 'norm.scale': expected a name of ModelConfig.parameter_shapes, like "
        "'blocks.0.qkv.weight'"
    )


def test_a_parameter_of_another_shape_is_refused(tmp_path: Path) -> None:
    parameters = drawn(OURS) | {"norm.bias": np.zeros(5)}
    assert not_written(tmp_path / "new", parameters) == (
        "parameter 'norm.bias': expected shape (4,), got (5,)"
    )


def test_a_parameter_that_is_no_float_is_refused(tmp_path: Path) -> None:
    parameters = drawn(OURS) | {"norm.bias": np.zeros(4, int)}
    assert not_written(tmp_path / "new", parameters) == (
        "parameter 'norm.bias': expected one of float64, float32, float16, got int64"
    )


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "none" / "model.safetensors"
    assert not_written(path, drawn(OURS)) == (
        f"{path}: expected to write weights, got no such file or directory"
    )


def test_a_file_where_a_folder_should_be_is_told(written: Path) -> None:
    path = written / "model.safetensors"
    assert not_written(path, drawn(OURS)) == (
        f"{path}: expected to write weights, got not a directory"
    )


def test_a_write_that_is_interrupted_leaves_the_old_file(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> NoReturn:
        raise KeyboardInterrupt

    before = written.read_bytes()
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_weights(written, OURS, drawn(OURS))
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == ["model.safetensors"]
