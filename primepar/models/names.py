"""The place of a parameter of ours among the tensors of a Hugging Face weight file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primepar.models.config import ModelConfig

_OPT_ROWS = 2  # the first rows of OPT's position table belong to padding


@dataclass(frozen=True)
class TensorNames:
    """Modules of a family: ours -> theirs, several where ours is several of theirs put together.

    A module of theirs that occurs several times holds these parts one after another, as
    GPT-2 all queries, then all keys, then all values. `prefix` is left out in files of the model
    without its head. `transposed`: linear weights are (K, N).
    """

    prefix: str
    outer: Mapping[str, str]
    layer: str
    inner: Mapping[str, tuple[str, ...]]
    transposed: bool = True


_NORMS = {"norm1": ("input_layernorm",), "norm2": ("post_attention_layernorm",)}
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
NAMES = {
    "gpt2": TensorNames(
        prefix="transformer.",
        outer={"embedding.token": "wte", "embedding.position": "wpe", "norm": "ln_f"},
        layer="h",
        inner={
            "norm1": ("ln_1",),
            "qkv": ("attn.c_attn",) * 3,
            "proj": ("attn.c_proj",),
            "norm2": ("ln_2",),
            "fc1": ("mlp.c_fc",),
            "fc2": ("mlp.c_proj",),
        },
        transposed=False,
    ),
    "opt": TensorNames(
        prefix="model.",
        outer={
            "embedding.token": "decoder.embed_tokens",
            "embedding.position": "decoder.embed_positions",
            "norm": "decoder.final_layer_norm",
        },
        layer="decoder.layers",
        inner={
            "norm1": ("self_attn_layer_norm",),
            "qkv": _QKV,
            "proj": ("self_attn.out_proj",),
            "norm2": ("final_layer_norm",),
            "fc1": ("fc1",),
            "fc2": ("fc2",),
        },
    ),
    "llama": TensorNames(
        prefix="model.",
        outer={"embedding.token": "embed_tokens", "norm": "norm"},
        layer="layers",
        inner=_NORMS
        | {
            "qkv": _QKV,
            "proj": ("self_attn.o_proj",),
            "fc1": ("mlp.gate_proj", "mlp.up_proj"),
            "fc2": ("mlp.down_proj",),
        },
    ),
    "bloom": TensorNames(
        prefix="transformer.",
        outer={
            "embedding.token": "word_embeddings",
            "embedding.norm": "word_embeddings_layernorm",
            "norm": "ln_f",
        },
        layer="h",
        inner=_NORMS
        | {
            "qkv": ("self_attention.query_key_value",),
            "proj": ("self_attention.dense",),
            "fc1": ("mlp.dense_h_to_4h",),
            "fc2": ("mlp.dense_4h_to_h",),
        },
    ),
}


@dataclass(frozen=True)
class Source:
    """Columns of a parameter that are one run of a tensor of the file.

    In every `period` columns of the parameter, `width` from `start` on are the next of the tensor,
    whose first is at `begin`. Columns are along the last dim of linear weights and of vectors, and
    along the first dim of tables; `shape` is the tensor's, `transposed` if it is the other way
    round than the parameter.
    """

    tensor: str
    shape: tuple[int, ...]
    dim: int
    transposed: bool
    begin: int
    start: int
    width: int
    period: int

    def columns(self, first: int, last: int) -> tuple[NDArray[np.bool_], slice]:
        """Which of the parameter's columns `first` to `last` come from here, and from where."""
        inside = (np.arange(first, last) - self.start) % self.period < self.width
        begin = self.begin + self._before(first)
        return inside, slice(begin, begin + int(inside.sum()))

    def _before(self, column: int) -> int:
        whole, rest = divmod(column, self.period)
        return whole * self.width + min(max(rest - self.start, 0), self.width)


def sources(config: ModelConfig, name: str, prefix: bool = True) -> tuple[Source, ...]:
    """Tensors that a parameter is made of, with or without the family's prefix in their names."""
    shape = config.parameter_shapes[name]
    table = name in ("embedding.token", "embedding.position")
    module, leaf = (name, "weight") if table else name.rsplit(".", 1)
    dim = 1 if module in config.linear_shapes and leaf == "weight" else 0
    if config.family == "gpt":
        return (Source(name, shape, dim, False, 0, 0, shape[dim], shape[dim]),)
    names = NAMES[config.family]
    tensors = [f"{theirs}.{leaf}" for theirs in _modules(names, module, names.prefix * prefix)]
    widths = _widths(config, len(tensors), shape[dim])
    turned = dim == 1 and (names.transposed or module == "head")
    padding = _OPT_ROWS if config.family == "opt" and name == "embedding.position" else 0
    begins, sizes = [], dict.fromkeys(tensors, padding)
    for tensor, width in zip(tensors, widths, strict=True):
        begins.append(sizes[tensor])
        sizes[tensor] += shape[dim] * width // sum(widths)
    parts = []
    for place, (tensor, width) in enumerate(zip(tensors, widths, strict=True)):
        theirs = (*shape[:dim], sizes[tensor], *shape[dim + 1 :])
        theirs = theirs[::-1] if turned else theirs
        start = sum(widths[:place])
        parts.append(Source(tensor, theirs, dim, turned, begins[place], start, width, sum(widths)))
    return tuple(parts)


def _modules(names: TensorNames, module: str, prefix: str) -> tuple[str, ...]:
    if module == "head":
        return ("lm_head",)
    if module in names.outer:
        return (prefix + names.outer[module],)
    _, layer, part = module.split(".")
    return tuple(f"{prefix}{names.layer}.{layer}.{theirs}" for theirs in names.inner[part])


def _widths(config: ModelConfig, tensors: int, columns: int) -> tuple[int, ...]:
    """Columns of each tensor that are adjacent before the next ones of the first follow."""
    if tensors == 3:
        return (config.group_columns - 2 * config.head_dim, config.head_dim, config.head_dim)
    return (columns,) if tensors == 1 else (1, 1)
