"""Hugging Face `config.json` of GPT-2, OPT, Llama and BLOOM, in old and new spellings.

A key that transformers would give a default has the same one here, unless it is a size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from primepar.errors import ConfigError
from primepar.models.config import ModelConfig
from primepar.reading import read_json

_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_BLOOM_CONTEXT = 2048  # what BLOOM was trained on; ALiBi itself has no limit


def load_config(path: str | Path) -> ModelConfig:
    """Model that a `config.json`, or the folder of one, describes.

    Raises `ConfigError` for a file that cannot be read, a missing key, a wrong type, sizes that do
    not fit one another, and variants of the architectures that are not built here.
    """
    path = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    content = read_json(path, object, "a config.json", ConfigError)
    if not isinstance(content, dict):
        got = "a list" if isinstance(content, list) else json.dumps(content)
        raise ConfigError(f"{path}: expected a JSON object, got {got}")
    return read_config(path, content)


def read_config(path: Path, content: dict[str, Any]) -> ModelConfig:
    """Model that the content of a `config.json` describes; raises what `load_config` raises."""
    keys = Keys(path, content)
    family = keys.word("model_type")
    if family not in _READERS:
        raise ConfigError(
            f"{path}: model_type: expected one of {', '.join(_READERS)}, got {family!r}"
        )
    fields = _READERS[family](keys)
    try:
        return ModelConfig.of(**{"family": family, **fields})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class Keys:
    """Keys of a JSON object by type, each under any of its spellings; null is as absent."""

    def __init__(self, path: Path, content: dict[str, Any], inside: str = "") -> None:
        self.path = path
        self.content = content
        self.inside = inside

    def integer(self, *spellings: str, default: int | None = None) -> int:
        """An integer. Raises `ConfigError` where it is another type, or absent with no default."""
        return int(self._value(int, spellings, default))

    def number(self, *spellings: str, default: float) -> float:
        """A number, whole or not. Raises `ConfigError` where it is another type."""
        return float(self._value(float, spellings, default))

    def flag(self, *spellings: str, default: bool) -> bool:
        """A truth value. Raises `ConfigError` where it is another type."""
        return bool(self._value(bool, spellings, default))

    def word(self, *spellings: str, default: str | None = None) -> str:
        """A string. Raises `ConfigError` where it is another type, or absent with no default."""
        return str(self._value(str, spellings, default))

    def activation(self, *spellings: str, default: str) -> str:
        """An activation under our name. Raises `ConfigError` for one that is not built here."""
        word = self.word(*spellings, default=default)
        if word not in _ACTIVATIONS:
            raise ConfigError(
                f"{self._where(self._present(spellings)[0])}: expected one of "
                f"{', '.join(_ACTIVATIONS)}, got {word!r}"
            )
        return _ACTIVATIONS[word]

    def only(self, expected: object, *spellings: str) -> None:
        """Raise `ConfigError` where a key is there and asks for a variant that is not built."""
        for key in self._present(spellings):
            if self.content[key] != expected:
                raise ConfigError(
                    f"{self._where(key)}: expected {json.dumps(expected)}, "
                    f"got {json.dumps(self.content[key])}: this variant is not built here"
                )

    def nested(self, key: str) -> Keys:
        """Keys of a nested object, none where it is absent. Raises `ConfigError`."""
        return Keys(self.path, self._value(dict, (key,), {}), f"{self.inside}{key}.")

    def _present(self, spellings: tuple[str, ...]) -> list[str]:
        return [key for key in spellings if self.content.get(key) is not None]

    def _value(self, kind: type, spellings: tuple[str, ...], default: object) -> Any:
        present = self._present(spellings)
        if not present and default is None:
            raise ConfigError(
                f"{self.path}: expected the key {self.inside}{' or '.join(spellings)}, got none: "
                "take the config.json that came with the weights"
            )
        values = [self._typed(kind, key) for key in present]
        for key, value in zip(present, values, strict=True):
            if value != values[0]:
                raise ConfigError(
                    f"{self._where(key)}: expected {values[0]!r} as in {present[0]}, got {value!r}"
                )
        return values[0] if values else default

    def _typed(self, kind: type, key: str) -> Any:
        value = self.content[key]
        accepted = (int, float) if kind is float else (kind,)
        if type(value) not in accepted:
            raise ConfigError(
                f"{self._where(key)}: expected {_WORDS[kind]}, got {json.dumps(value)}"
            )
        return value

    def _where(self, key: str) -> str:
        return f"{self.path}: {self.inside}{key}"


_WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "an object",
}


def _gpt2(keys: Keys) -> dict[str, Any]:
    keys.only(True, "scale_attn_weights")
    keys.only(False, "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    hidden = keys.integer("n_embd", "hidden_size")
    return {
        "layers": keys.integer("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": keys.integer("n_head", "num_attention_heads"),
        "ffn": keys.integer("n_inner", default=4 * hidden),
        "context": keys.integer("n_positions", "max_position_embeddings"),
        "vocabulary": keys.integer("vocab_size"),
        "epsilon": keys.number("layer_norm_epsilon", default=1e-5),
        "activation": keys.activation("activation_function", default="gelu_new"),
        "tied": keys.flag("tie_word_embeddings", default=True),
        "embedding_dropout": keys.number("embd_pdrop", default=0.1),
        "dropout": keys.number("resid_pdrop", default=0.1),
        "attention_dropout": keys.number("attn_pdrop", default=0.1),
    }


def _opt(keys: Keys) -> dict[str, Any]:
    keys.only(True, "do_layer_norm_before", "layer_norm_elementwise_affine")
    keys.only(False, "_remove_final_layer_norm")
    hidden = keys.integer("hidden_size")
    keys.only(hidden, "word_embed_proj_dim")
    bias = keys.flag("enable_bias", default=True)
    return {
        "layers": keys.integer("num_hidden_layers"),
        "hidden": hidden,
        "heads": keys.integer("num_attention_heads"),
        "ffn": keys.integer("ffn_dim"),
        "context": keys.integer("max_position_embeddings"),
        "vocabulary": keys.integer("vocab_size"),
        "activation": keys.activation("activation_function", default="relu"),
        "attention_bias": bias,
        "mlp_bias": bias,
        "tied": keys.flag("tie_word_embeddings", default=True),
        "dropout": keys.number("dropout", default=0.1),
        "attention_dropout": keys.number("attention_dropout", default=0.0),
    }


def _llama(keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    fields = {
        "layers": keys.integer("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": keys.integer("num_key_value_heads", default=heads),
        "ffn": keys.integer("intermediate_size"),
        "context": keys.integer("max_position_embeddings"),
        "vocabulary": keys.integer("vocab_size"),
        "epsilon": keys.number("rms_norm_eps", default=1e-6),
        "activation": keys.activation("hidden_act", default="silu"),
        "attention_bias": keys.flag("attention_bias", default=False),
        "mlp_bias": keys.flag("mlp_bias", default=False),
        "rope_theta": _rope_theta(keys),
        "tied": keys.flag("tie_word_embeddings", default=False),
        "attention_dropout": keys.number("attention_dropout", default=0.0),
    }
    if keys.content.get("head_dim") is not None:
        fields["head_dim"] = keys.integer("head_dim")
    return fields


def _rope_theta(keys: Keys) -> float:
    """Base of the rotary angles: a key of its own up to transformers 4, in an object from 5 on."""
    parts = [keys.nested("rope_parameters"), keys.nested("rope_scaling"), keys]
    for part in parts:
        part.only(1.0, "partial_rotary_factor")
    for part in parts[:2]:
        part.only("default", "rope_type", "type")
    merged = {
        f"{part.inside}rope_theta": part.content["rope_theta"]
        for part in parts
        if part.content.get("rope_theta") is not None
    }
    return Keys(keys.path, merged).number(*merged, default=10000.0)


def _bloom(keys: Keys) -> dict[str, Any]:
    keys.only(False, "apply_residual_connection_post_layernorm")
    return {
        "layers": keys.integer("n_layer", "num_hidden_layers"),
        "hidden": keys.integer("hidden_size", "n_embed"),
        "heads": keys.integer("n_head", "num_attention_heads"),
        "context": keys.integer("seq_length", default=_BLOOM_CONTEXT),
        "vocabulary": keys.integer("vocab_size"),
        "epsilon": keys.number("layer_norm_epsilon", default=1e-5),
        "tied": keys.flag("tie_word_embeddings", default=True),
        "dropout": keys.number("hidden_dropout", default=0.0),
        "attention_dropout": keys.number("attention_dropout", default=0.0),
    }


_READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "llama": _llama,
    "bloom": _bloom,
}
