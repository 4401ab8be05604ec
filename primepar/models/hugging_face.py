"""A Hugging Face folder besides its tensors: `config.json`, the index of shards, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from primepar.errors import ConfigError, WeightError
from primepar.models.config import ModelConfig
from primepar.models.config_json import load_config, read_config
from primepar.models.tensor_file import DTYPES, Layout

SHARD_BYTES = 5_000_000_000
"""Largest file of a folder, as transformers wrote them up to version 4."""
MODEL, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",
)  # fmt: skip
"""Files about the text, which training does not change."""
_DROPOUTS = ("embedding_dropout", "dropout", "attention_dropout")
"""Fields that matter to training alone; a family may lack one."""
_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ACTIVATIONS = {"gelu_tanh": "gelu_new"}
_ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "llama": "LlamaForCausalLM",
    "bloom": "BloomForCausalLM",
}
_SIZES = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "max_position_embeddings": "context",
}
_KEYS: dict[str, dict[str, str]] = {
    "gpt2": {
        "n_embd": "hidden",
        "n_layer": "layers",
        "n_head": "heads",
        "n_inner": "ffn",
        "n_positions": "context",
        "layer_norm_epsilon": "epsilon",
        "activation_function": "activation",
        "embd_pdrop": "embedding_dropout",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    "opt": {
        **_SIZES,
        "ffn_dim": "ffn",
        "word_embed_proj_dim": "hidden",
        "activation_function": "activation",
        "enable_bias": "attention_bias",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    "llama": {
        **_SIZES,
        "intermediate_size": "ffn",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_dim",
        "rms_norm_eps": "epsilon",
        "hidden_act": "activation",
        "attention_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "rope_theta": "rope_theta",
        "attention_dropout": "attention_dropout",
    },
    "bloom": {
        "hidden_size": "hidden",
        "n_layer": "layers",
        "n_head": "heads",
        "seq_length": "context",
        "layer_norm_epsilon": "epsilon",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
}


def config_content(config: ModelConfig, code: str = "F32") -> dict[str, Any]:
    """Return the `config.json` of a model whose tensors have the type `code`, one of `DTYPES`.

    A dropout that the family lacks is left out.
    Raises `ConfigError` for a model that transformers cannot express.
    """
    if config.family not in _KEYS:
        raise ConfigError(
            f"model: expected a family out of {', '.join(_KEYS)} for a Hugging Face folder, got "
            f"{config.family}: save into a file that ends with .safetensors"
        )
    content = {key: getattr(config, field) for key, field in _KEYS[config.family].items()}
    for key in ("activation_function", "hidden_act"):
        if key in content:
            content[key] = _ACTIVATIONS.get(content[key], content[key])
    if config.family == "llama":  # the second spelling is that of transformers 5
        rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
        content["rope_parameters"] = rope
    content = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "torch_dtype": _TORCH[code],
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.tied,
        **content,
    }
    read = read_config(Path(CONFIG), content)
    for name in _differing(read, config):
        raise ConfigError(
            f"model: expected {name} {getattr(read, name)} as transformers has it for "
            f"{config.family}, got {getattr(config, name)}: save into a file that ends with "
            ".safetensors"
        )
    return content


def _differing(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Return the names of the fields in which two models differ, without dropout."""
    return [
        field.name
        for field in fields(ModelConfig)
        if getattr(config, field.name) != getattr(other, field.name) and field.name not in _DROPOUTS
    ]


def check_config(folder: Path, config: ModelConfig) -> None:
    """Compare the `config.json` of a folder of weights, if there is one, with the model.

    The context and dropout may differ. Raises `WeightError` for any other difference.
    """
    if not (folder / CONFIG).is_file():
        return
    theirs = load_config(folder)
    for name in _differing(theirs, config):
        if name != "context":
            raise WeightError(
                f"{folder / CONFIG}: expected {name} {getattr(config, name)} as in the model, got "
                f"{getattr(theirs, name)}: give the weights of this model"
            )


def shards(layout: Layout, limit: int = SHARD_BYTES) -> dict[str, dict[str, Any]]:
    """Return file -> layout of its tensors: one file, or several of at most `limit` bytes.

    A tensor that is larger than the limit has a file of its own.
    """
    groups: list[dict[str, Any]] = [{}]
    used = 0
    for name, (dtype, shape) in layout.items():
        size = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        if groups[-1] and used + size > limit:
            groups.append({})
            used = 0
        groups[-1][name] = (dtype, shape)
        used += size
    if len(groups) == 1:
        return {MODEL: groups[0]}
    stem = MODEL.partition(".")[0]
    return {
        f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


def index_text(files: Mapping[str, Layout]) -> bytes:
    """Return the index of several files: which of them has a tensor."""
    total = sum(
        prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        for layout in files.values()
        for dtype, shape in layout.values()
    )
    places = {name: file for file, layout in files.items() for name in layout}
    return _json({"metadata": {"total_size": total}, "weight_map": places})


def write_rest(
    folder: Path, config: ModelConfig, files: Mapping[str, Layout], like: Path | None
) -> None:
    """Write all but the tensors of a folder.

    `like` is the folder that the run began with: its tokenizer is copied, and its `config.json` too
    if that is of this very model. Raises `OSError` if a file cannot be read or written.
    """
    if len(files) > 1:
        (folder / INDEX).write_bytes(index_text(files))
    if like is not None:
        for name in COPIED:
            if (like / name).is_file():
                (folder / name).write_bytes((like / name).read_bytes())
    if like is not None and (like / CONFIG).is_file() and load_config(like) == config:
        content = (like / CONFIG).read_bytes()
    else:
        code = next(dtype for layout in files.values() for dtype, _ in layout.values())
        content = _json(config_content(config, code))
    (folder / CONFIG).write_bytes(content)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
