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
INDEX = "model.safetensors.index.json"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_weights(path, LLAMA, drawn(LLAMA))
    return path


# Wrong files


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
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
UP, HEAD = "model.layers.1.mlp.up_proj.weight", "lm_head.weight"
TENSORS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (
        lambda tensors: tensors.pop(UP), f"expected the tensor '{UP}', got none: {BELONG}",
    ),
    "one more": (
        lambda tensors: tensors.update(more=np.zeros((2, 3))),
        f"expected no tensor 'more', got one of (2, 3): {BELONG}",
    ),
    "of another shape": (
        lambda tensors: tensors.update({HEAD: np.zeros((24, 21))}),
        f"tensor '{HEAD}': expected shape (21, 24), got (24, 21): {BELONG}",
    ),
    "no float": (
        lambda tensors: tensors.update({HEAD: np.zeros((21, 24), np.int8)}),
        f"tensor '{HEAD}': expected one of F64, F32, F16, BF16, got I8: convert the weights first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_a_wrong_tensor_is_refused(written: Path, name: str) -> None:
    change, message = TENSORS[name]
    rewritten(written, change)
    assert refused(written) == f"{written}: {message}"


def test_a_file_of_another_model_is_refused(written: Path) -> None:
    config = ModelConfig.of("gpt2", layers=1, hidden=4, heads=2, context=3, vocabulary=5)
    assert refused(written, config) == (
        f"{written}: expected the tensor 'wte.weight', got none: give the weights that belong to "
        "this gpt2 configuration"
    )


def test_buffers_of_old_files_and_a_copy_of_a_tied_head_are_passed_over(tmp_path: Path) -> None:
    config, path = CONFIGS["llama-tied"], tmp_path / "model.safetensors"
    table = drawn(config)["embedding.token"]
    write_weights(path, config, drawn(config))
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3)}
    rewritten(path, lambda tensors: tensors.update(buffer | {HEAD: table}))
    assert WeightFile(path, config).read_block("norm.weight").all()
    rewritten(path, lambda tensors: tensors.update({HEAD: table[::-1].copy()}))
    assert refused(path, config) == (
        f"{path}: tensor 'lm_head.weight': expected the token table, as the configuration ties "
        "them, got another: set tie_word_embeddings to false"
    )


@pytest.mark.parametrize(("more", "what"), [(-1, "cut short"), (1, "damaged")])
def test_a_file_of_another_length_than_its_header_states_is_refused(
    written: Path, more: int, what: str
) -> None:
    content = written.read_bytes()
    written.write_bytes((content + b"0")[: len(content) + more])
    assert refused(written) == (
        f"{written}: expected {len(content)} bytes by its header, got {len(content) + more}: the "
        f"file is {what}, fetch it again"
    )


def headed(text: bytes) -> bytes:
    """A file of this header alone."""
    return len(text).to_bytes(8, "little") + text


ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 8]}
LOST = (
    "expected a safetensors file, got {0} bytes that do not hold its header: the file is cut "
    "short or of another kind, fetch it again"
)
CONTENTS: dict[str, tuple[bytes, str]] = {
    **{f"content {content!r}": (content, LOST.format(len(content)))
       for content in (b"", b"1234567", b"version https://git-lfs", b"\2" + bytes(8))},
    "no object": (
        headed(b"[1]"), "expected a safetensors header, got Expected `object`, got `array`",
    ),
    "no shape": (
        headed(b'{"a": {"dtype": "F32"}}'), "tensor 'a': Object missing required field `shape`",
    ),
    "another length than of the shape": (
        headed(json.dumps({"a": ENTRY}).encode()),
        "tensor 'a': expected 24 bytes for F32 of shape (2, 3), got 8: the file is damaged, fetch "
        "it again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path: Path, name: str) -> None:
    path, (content, message) = tmp_path / "model.safetensors", CONTENTS[name]
    path.write_bytes(content)
    assert refused(path) == f"{path}: {message}"


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    message = f"{path}: expected a safetensors file, got no such file or directory"
    assert [refused(path), refused(tmp_path)] == [message, message]


@pytest.mark.parametrize(
    ("content", "wrong", "message"),
    [
        (None, INDEX, "expected an index of safetensors files, got no such file or directory"),
        ({}, INDEX, "expected an index of safetensors files, got Object missing required field "
         "`weight_map`"),
        ({"weight_map": {"norm.weight": "model-1.safetensors"}}, "model-1.safetensors",
         "expected a safetensors file, got no such file or directory"),
        ({"weight_map": {"norm.weight": "../other.safetensors"}}, INDEX,
         "expected files in the folder of the index, got '../other.safetensors'"),
    ],
)  # fmt: skip
def test_a_wrong_index_is_refused(
    tmp_path: Path, content: object, wrong: str, message: str
) -> None:
    if content is not None:
        (tmp_path / INDEX).write_text(json.dumps(content))
    assert refused(tmp_path / INDEX) == f"{tmp_path / wrong}: {message}"


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


PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"norm.bias": None}, "parameters: expected 'norm.bias', got none"),
    "of another model": (
        {"norm.scale": np.zeros(4)},
        "parameter 'norm.scale': expected a name of ModelConfig.parameter_shapes, like "
        "'blocks.0.qkv.weight'",
    ),
    "of another shape": (
        {"norm.bias": np.zeros(5)}, "parameter 'norm.bias': expected shape (4,), got (5,)",
    ),
    "no float": (
        {"norm.bias": np.zeros(4, int)},
        "parameter 'norm.bias': expected one of float64, float32, float16, got int64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_wrong_parameter_is_refused(written: Path, name: str) -> None:
    changed, message = PARAMETERS[name]
    given = {known: value for known, value in (drawn(OURS) | changed).items() if value is not None}
    assert not_written(written, given) == message


@pytest.mark.parametrize(
    ("folder", "reason"),
    [("none", "no such file or directory"), ("model.safetensors", "not a directory")],
)
def test_a_place_without_a_folder_is_reported(written: Path, folder: str, reason: str) -> None:
    path = written.parent / folder / "model.safetensors"
    assert not_written(path, drawn(OURS)) == f"{path}: expected to write weights, got {reason}"


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
