"""Sizes of a model from any `config.json` of today's decoders: what a plan needs, without weights.

`KEYS` has for each size the keys that families spell it with: those of the table of `config_json`,
by which models are trained, and more. `FAMILIES` has for each `model_type`
what its architecture fixes, and the values of keys that a file may leave out. What no field here
has, a few biases and norms, is counted as `small` parameters by `_small`.

Example: of Qwen3-8B `hidden_size`, `num_key_value_heads` and so on are read. Its family states RMS
norms, a gated SiLU, and norms of the heads of queries and keys, 2 x 128 small parameters a layer.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from primepar.errors import ConfigError
from primepar.models.config import FAMILIES as OF_FAMILY
from primepar.models.config import KINDS, Count, Experts, Latent, ModelConfig, PricedParts
from primepar.models.config_json import CONFIG, THEIRS, model_type, read_config, read_value
from primepar.models.config_json import FAMILIES as SPELT
from primepar.reading import read_json

PUBLISHED: Final = Path(__file__).parent / "published.json"
"""Published models: of each its name, and the keys of its `config.json` that are sizes."""
TRAINED: Final = ("llama", "opt", "gpt2", "bloom")
"""Model types that are families of `ModelConfig`; their spellings come in this order."""
_MORE: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_layers",),
    "activation": ("hidden_activation",),
    "epsilon": ("layer_norm_eps",),
    "window": ("sliding_window",),
    "windows": ("use_sliding_window",),
    "whole_layers": ("max_window_layers",),
    "every": ("sliding_window_pattern",),
    "kinds": ("layer_types",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "chosen": ("num_experts_per_tok", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "shared": ("n_shared_experts",),
    "dense": ("first_k_dense_replace",),
    "sparse_step": ("decoder_sparse_step", "moe_layer_freq"),
    "dense_layers": ("mlp_only_layers",),
    "queries": ("q_lora_rank",),
    "keys": ("kv_lora_rank",),
    "rotary": ("qk_rope_head_dim",),
    "unrotated": ("qk_nope_head_dim",),
    "value": ("v_head_dim",),
    "projected": ("word_embed_proj_dim",),
    "norms_before": ("do_layer_norm_before",),
}
"""Size -> its keys, in addition to those that the trainer reads."""


def _keys() -> Iterator[tuple[str, tuple[str, ...]]]:
    tables = [*(SPELT[family].spellings for family in TRAINED), _MORE]
    for size in dict.fromkeys(size for table in tables for size in table):
        keys = (key for table in tables for key in table.get(size, ()) if "." not in key)
        if not size.endswith("dropout"):  # a plan has none
            yield size, tuple(dict.fromkeys(keys))


KEYS: Final = dict(_keys())
"""Size -> its keys; the first that a file has counts."""

_TYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(KEYS, Count), "windows": bool, "norms_before": bool,
    "kinds": list[str], "dense_layers": list[int],
    **{name: KINDS[name] for name in KEYS if name in KINDS},
}  # fmt: skip

_STATED = ("norm", "gated", "positions", "activation", "attention_bias", "mlp_bias", "tied")
_RMS, _LAYER, _OPT, _BLOOM = (
    {name: OF_FAMILY[family][name] for name in _STATED}
    for family in ("llama", "gpt2", "opt", "bloom")
)
_GEMMA = _RMS | {"activation": "gelu_tanh", "tied": True, "head_dim": 256}
_DEEPSEEK = _RMS | {"dense": 0, "shared": 0, "sparse_step": 1}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "gpt2": _LAYER,
    "opt": _OPT,
    "bloom": _BLOOM | {"embedding_norm": True, "context": 2048},
    "llama": _RMS,
    "mistral": _RMS,
    "mixtral": _RMS,
    "qwen2": _RMS | {"windows": False, "small": ("qkv_bias",)},
    "qwen2_moe": _RMS | {"windows": False, "small": ("qkv_bias", "shared_gate")},
    "qwen3": _RMS | {"windows": False, "head_dim": 128, "small": ("head_norms",)},
    "qwen3_moe": _RMS | {"windows": False, "small": ("head_norms",)},
    "gemma": _GEMMA,
    "gemma2": _GEMMA | {"every": 2, "small": ("two_more_norms",)},
    "gemma3_text": _GEMMA | {"every": 6, "small": ("two_more_norms", "head_norms")},
    "phi": _LAYER | {"positions": "rotary", "tied": False, "small": ("one_norm", "head_bias")},
    "phi3": _RMS,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK | {"small": ("router_bias",)},
    "gpt_oss": _RMS | {
        "attention_bias": True, "every": 2,
        "small": ("router_bias", "expert_bias", "sinks"),
    },
}  # fmt: skip
"""Model type -> what its architecture fixes, and values of keys that may be left out."""


_REQUIRED: Final = ("layers", "hidden", "heads", "ffn", "context", "vocabulary")


def find_model(name_or_path: str) -> ModelConfig:
    """The model of that name, or that a `config.json`, or the folder of one, describes.

    Of a file that the trainer reads it is that very model, else its sizes. Raises `ConfigError`
    for a file that cannot be read, and for a name that is neither.
    """
    if name_or_path.lower() in MODELS:
        return MODELS[name_or_path.lower()]
    path = Path(name_or_path)
    if not path.exists() and path.suffix != ".json":
        *others, last = get_close_matches(name_or_path.lower(), MODELS, n=3, cutoff=0.0)
        raise ConfigError(
            f"expected a config.json or the name of a published model, got {name_or_path}: write "
            f"{', '.join(others)} or {last}"
        )
    path = path / CONFIG if path.is_dir() else path
    content = read_json(path, object, "a config.json", ConfigError)
    try:
        return read_config(content)
    except ConfigError:
        try:
            return read_sizes(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def read_sizes(content: Any) -> ModelConfig:
    """Sizes that the content of a `config.json` describes.

    Of a model of text and images, those of the text. Raises `ConfigError`: for a type of model or a
    variant that is not known, a missing key, a value that is none of its key, and sizes that do not
    fit one another.
    """
    if isinstance(content, dict) and isinstance(content.get("text_config"), dict):
        content = content["text_config"]
    kind = model_type(content, FAMILIES)
    values = dict(FAMILIES[kind])
    small = values.pop("small", ())
    used = {size: next((key for key in keys if content.get(key) is not None), keys[0])
            for size, keys in KEYS.items()}  # fmt: skip
    for size, key in used.items():
        if content.get(key) is not None:
            values[size] = read_value(_TYPES[size], key, content[key])
    if FAMILIES[kind]["norm"] == "layer" and "hidden" in values:
        values.setdefault("ffn", 4 * values["hidden"])
    for size in _REQUIRED:
        if size not in values:
            raise ConfigError(f"expected the key {' or '.join(KEYS[size])}, got none: {THEIRS}")
    expected = {"projected": values["hidden"], "norms_before": True, "sparse_step": 1}
    for size, only in expected.items():
        if values.get(size, only) != only:
            raise ConfigError(
                f"{used[size]}: expected {json.dumps(only)}, got {json.dumps(values[size])}: this "
                "variant has other sizes; write those of a model like it"
            )
    parts = _parts(values, used)
    if parts.latent:
        values |= {"head_dim": values["unrotated"] + values["rotary"], "kv_heads": values["heads"]}
    sizes = {name: value for name, value in values.items() if name in KINDS}
    family = kind if kind in TRAINED else "llama" if values["norm"] == "rms" else "gpt"
    model = ModelConfig.of(**({"family": family} | sizes))
    parts = replace(parts, small=sum(_small(name, model, parts.experts) for name in small))
    return model if parts == PricedParts() else dataclasses.replace(model, priced=parts)


def _parts(values: Mapping[str, Any], used: Mapping[str, str]) -> PricedParts:
    """Experts, latent attention and windows of a model. Raises `ConfigError` for a missing key.

    `used` are the keys of the file, by size.
    """

    def needed(size: str, because: str) -> int:
        if size not in values:
            raise ConfigError(
                f"expected the key {' or '.join(KEYS[size])} with {used[because]}, got none: "
                f"{THEIRS}"
            )
        return int(values[size])

    experts = latent = None
    if values.get("experts"):
        ffn = values.get("expert_ffn", values["ffn"])
        shared = values.get("shared_ffn", values.get("shared", 0) * ffn)
        dense = values.get("dense", len(values.get("dense_layers", ())))
        chosen = needed("chosen", "experts")
        if not (1 <= chosen <= values["experts"] and dense <= values["layers"]):
            raise ConfigError(
                f"{used['chosen']}: expected 1 to {values['experts']} experts, in at most "
                f"{values['layers']} layers, got {chosen} with {dense} layers without: correct them"
            )
        experts = Experts(values["experts"], chosen, ffn, shared, dense)
    if values.get("keys"):
        latent = Latent(
            values.get("queries", 0), values["keys"], needed("rotary", "keys"),
            needed("value", "keys"),
        )  # fmt: skip
        needed("unrotated", "keys")
    window, layers = values.get("window"), values["layers"]
    if not window or not values.get("windows", True):
        return PricedParts(experts, latent)
    if "kinds" in values:
        windowed = sum(kind.startswith("sliding") for kind in values["kinds"])
    elif "every" in values:  # the last of every few layers attends to all tokens
        windowed = layers - layers // values["every"]
    else:
        windowed = layers - min(layers, values.get("whole_layers", 0))
    return PricedParts(experts, latent, window if windowed else None, windowed)


def _small(name: str, model: ModelConfig, experts: Experts | None) -> int:
    """Parameters of a model that no operator has, by the name of what they are."""
    hidden, layers, heads = model.hidden, model.layers, model.heads
    count, ffn, dense = (experts.count, experts.ffn, experts.dense) if experts else (0, 0, 0)
    return {
        "qkv_bias": layers * (heads + 2 * model.kv_heads) * model.head_dim,
        "head_norms": layers * 2 * model.head_dim,
        "two_more_norms": layers * 2 * hidden,
        "one_norm": -layers * 2 * hidden,  # attention and feed-forward share one, with its bias
        "head_bias": model.vocabulary,
        "router_bias": (layers - dense) * count,
        "expert_bias": (layers - dense) * count * (2 * ffn + hidden),
        "shared_gate": layers * hidden,
        "sinks": layers * heads,
    }[name]


MODELS: Final = MappingProxyType(
    {
        name: read_sizes(content)
        for name, content in read_json(PUBLISHED, dict, "published models", ConfigError).items()
    }
)
"""Name -> sizes of a published model."""
