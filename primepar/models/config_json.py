"""Hugging Face `config.json` of GPT-2, OPT, Llama and BLOOM, in old and new spellings.

One table states for each family how our fields are spelt there; files are read and written by it. A
key that transformers would give a default has the same one here, unless it is a size.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from primepar.errors import ConfigError, nearest
from primepar.models.config import KINDS, Activation, ModelConfig
from primepar.reading import read_json
from primepar.schedule.program_method import allowed

CONFIG = "config.json"
_TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Their name -> ours; the first of a name is written."""
THEIRS = "take the config.json that came with the weights"


class Keys(NamedTuple):
    """The keys of a family in `config.json`; `a.b` is the key b of the object a."""

    architecture: str
    spellings: dict[str, tuple[str, ...]]
    """Field of a model -> its keys, which must be equal where several are there."""
    defaults: dict[str, object]
    """Field whose keys may be absent -> its value then; None leaves it to `ModelConfig.of`."""
    built: dict[str, object]
    """Key -> the only value of it that is built here."""
    equal: dict[str, str] = {}
    """Key -> the field that it must be equal to."""


_SHARED: dict[str, tuple[str, ...]] = {
    "vocabulary": ("vocab_size",),
    "tied": ("tie_word_embeddings",),
}
_SIZES = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "context": ("max_position_embeddings",),
}
_ROPE = ("rope_parameters", "rope_scaling")
FAMILIES = {
    "gpt2": Keys(
        "GPT2LMHeadModel",
        _SHARED
        | {
            "hidden": ("n_embd", "hidden_size"),
            "layers": ("n_layer", "num_hidden_layers"),
            "heads": ("n_head", "num_attention_heads"),
            "ffn": ("n_inner",),
            "context": ("n_positions", "max_position_embeddings"),
            "epsilon": ("layer_norm_epsilon",),
            "activation": ("activation_function",),
            "embedding_dropout": ("embd_pdrop",),
            "dropout": ("resid_pdrop",),
            "attention_dropout": ("attn_pdrop",),
        },
        {"ffn": None, "epsilon": 1e-5, "activation": "gelu_tanh", "tied": True,
         "embedding_dropout": 0.1, "dropout": 0.1, "attention_dropout": 0.1},
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
         "add_cross_attention": False},
    ),
    "opt": Keys(
        "OPTForCausalLM",
        _SHARED
        | _SIZES
        | {
            "ffn": ("ffn_dim",),
            "activation": ("activation_function",),
            "attention_bias": ("enable_bias",),
            "mlp_bias": ("enable_bias",),
            "dropout": ("dropout",),
            "attention_dropout": ("attention_dropout",),
        },
        {"activation": "relu", "attention_bias": True, "mlp_bias": True, "tied": True,
         "dropout": 0.1, "attention_dropout": 0.0},
        {"do_layer_norm_before": True, "layer_norm_elementwise_affine": True,
         "_remove_final_layer_norm": False},
        {"word_embed_proj_dim": "hidden"},
    ),
    "llama": Keys(
        "LlamaForCausalLM",
        _SHARED
        | _SIZES
        | {
            "kv_heads": ("num_key_value_heads",),
            "head_dim": ("head_dim",),
            "ffn": ("intermediate_size",),
            "epsilon": ("rms_norm_eps",),
            "activation": ("hidden_act",),
            "attention_bias": ("attention_bias",),
            "mlp_bias": ("mlp_bias",),
            # In an object from transformers 5 on, before that a key of its own.
            "rope_theta": (*(f"{part}.rope_theta" for part in _ROPE), "rope_theta"),
            "attention_dropout": ("attention_dropout",),
        },
        {"kv_heads": None, "head_dim": None, "epsilon": 1e-6, "activation": "silu",
         "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0, "tied": False,
         "attention_dropout": 0.0},
        {**{f"{part}.{key}": "default" for part in _ROPE for key in ("rope_type", "type")},
         **{f"{part}partial_rotary_factor": 1.0 for part in ("", *(f"{part}." for part in _ROPE))}},
    ),
    "bloom": Keys(
        "BloomForCausalLM",
        _SHARED
        | {
            "hidden": ("hidden_size", "n_embed"),
            "layers": ("n_layer", "num_hidden_layers"),
            "heads": ("n_head", "num_attention_heads"),
            "context": ("seq_length",),
            "epsilon": ("layer_norm_epsilon",),
            "dropout": ("hidden_dropout",),
            "attention_dropout": ("attention_dropout",),
        },
        # BLOOM was trained on 2,048 positions; ALiBi itself has no limit.
        {"context": 2048, "epsilon": 1e-5, "tied": True, "dropout": 0.0, "attention_dropout": 0.0},
        {"apply_residual_connection_post_layernorm": False},
    ),
}  # fmt: skip


def load_config(path: str | Path) -> ModelConfig:
    """Model that a `config.json`, or the folder of one, describes.

    Raises `ConfigError` for a file that cannot be read, a missing key, a wrong type, sizes that do
    not fit one another, and variants of the architectures that are not built here.
    """
    path = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    content = read_json(path, object, "a config.json", ConfigError)
    try:
        return read_config(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_config(content: Any) -> ModelConfig:
    """Model that the content of a `config.json` describes; raises what `load_config` raises."""
    family = model_type(content, FAMILIES)
    keys, flat = FAMILIES[family], dict(content)
    for part in _ROPE:
        inner = content.get(part)
        if family == "llama" and inner is not None:
            if not isinstance(inner, dict):
                raise ConfigError(f"{part}: expected an object, got {json.dumps(inner)}")
            flat |= {f"{part}.{key}": value for key, value in inner.items()}
    values = {
        field: _field(field, spellings, flat, keys.defaults)
        for field, spellings in keys.spellings.items()
    }
    built = keys.built | {key: values[field] for key, field in keys.equal.items()}
    for key, expected in built.items():
        if flat.get(key) is not None and flat[key] != expected:
            raise ConfigError(
                f"{key}: expected {json.dumps(expected)}, got {json.dumps(flat[key])}: "
                "this variant is not built here"
            )
    given = {field: value for field, value in values.items() if value is not None}
    return ModelConfig.of(**{"family": family, **given})


def model_type(content: Any, known: Collection[str]) -> str:
    """The type of model of a `config.json`. Raises `ConfigError` for one that is not known."""
    if not isinstance(content, dict):
        raise ConfigError(f"expected a JSON object, got {json.dumps(content):.40}")
    name = content.get("model_type")
    if isinstance(name, str) and name in known:
        return name
    got = json.dumps(name) if "model_type" in content else "none"
    write = nearest(str(name), known) or ": write that of a model with the same operators"
    raise ConfigError(f"model_type: expected one of {', '.join(known)}, got {got}{write}")


def _field(
    field: str, spellings: tuple[str, ...], content: dict[str, Any], defaults: dict[str, object]
) -> Any:
    """The value of a field under any of its keys; null is as absent."""
    values = {
        key: read_value(KINDS[field], key, content[key])
        for key in spellings
        if content.get(key) is not None
    }
    if not values and field in defaults:
        return defaults[field]
    if not values:
        raise ConfigError(f"expected the key {' or '.join(spellings)}, got none: {THEIRS}")
    first, *_ = values
    for key, value in values.items():
        if value != values[first]:
            raise ConfigError(f"{key}: expected {content[first]!r} as in {first}, got {value!r}")
    return values[first]


def read_value(kind: Any, key: str, value: Any) -> Any:
    """A value of its key's type; an activation by our name. Raises `ConfigError`."""
    if kind is Activation and isinstance(value, str) and value in ACTIVATIONS:
        return ACTIVATIONS[value]
    if kind is Activation:
        near = nearest(str(value), ACTIVATIONS) or ": write the nearest of them"
        raise ConfigError(
            f"{key}: expected one of {', '.join(ACTIVATIONS)}, got {json.dumps(value)}{near}"
        )
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{key}: expected {allowed(kind)}, got {json.dumps(value)}: {THEIRS}"
        ) from None


def config_content(config: ModelConfig, code: str = "F32") -> dict[str, Any]:
    """Return the `config.json` of a model whose tensors have the type `code`, `F32` or `BF16`.

    A dropout that the family lacks is left out.
    Raises `ConfigError` for a model that transformers cannot express.
    """
    if config.family not in FAMILIES:
        raise ConfigError(
            f"model: expected a family out of {', '.join(FAMILIES)} for a Hugging Face folder, got "
            f"{config.family}: save into a file that ends with .safetensors"
        )
    keys = FAMILIES[config.family]
    content: dict[str, Any] = {"architectures": [keys.architecture], "model_type": config.family,
                               "torch_dtype": _TORCH[code]}  # fmt: skip
    for field, spellings in keys.spellings.items():
        content[spellings[0]] = getattr(config, field)
        if field == "activation":
            theirs = (name for name, ours in ACTIVATIONS.items() if ours == config.activation)
            content[spellings[0]] = next(theirs)
    content |= {key: getattr(config, field) for key, field in keys.equal.items()}
    theta = content.pop("rope_parameters.rope_theta", None)
    if theta is not None:  # transformers 4 reads the first spelling, 5 the second
        content["rope_theta"] = theta
        content["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    read = read_config(content)
    for name in differing(read, config):
        raise ConfigError(
            f"model: expected {name} {getattr(read, name)} as transformers has it for "
            f"{config.family}, got {getattr(config, name)}: save into a file that ends with "
            ".safetensors"
        )
    return content


def differing(config: ModelConfig, other: ModelConfig) -> list[str]:
    """Return the names of the fields in which two models differ, without dropout.

    Dropout matters to training alone, and a family may lack one of its places.
    """
    return [
        field.name
        for field in fields(ModelConfig)
        if getattr(config, field.name) != getattr(other, field.name)
        and not field.name.endswith("dropout")
    ]
