"""Weight files and parameters that are wrong: each refused in one line, and nothing written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from model_cases import CONFIGS, OURS, drawn

from primepar.errors import WeightError
from primepar.models import ModelConfig, WeightFile, write_weights

LLAMA = CONFIGS["llama"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_weights(path, LLAMA, drawn(LLAMA))
    return path


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


def test_a_file_with_more_than_its_header_states_is_refused(written: Path) -> None:
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


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    message = f"{path}: expected a safetensors file, got no such file or directory"
    assert [refused(path), refused(tmp_path)] == [message, message]


def test_a_missing_file_of_an_index_is_reported(tmp_path: Path) -> None:
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
        f"{index}: expected files in the folder of the index, got '../other.safetensors'"
    )


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    assert refused(index) == (
        f"{index}: expected an index of safetensors files, got no such file or directory"
    )
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


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "none" / "model.safetensors"
    assert not_written(path, drawn(OURS)) == (
        f"{path}: expected to write weights, got no such file or directory"
    )


def test_a_file_where_a_folder_should_be_is_reported(written: Path) -> None:
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
