"""Tensors of the transformers library as our parameters.

Written once more and in another way than in primepar.models: it is what that is tested against.
"""

from __future__ import annotations

import numpy as np
from model_cases import Saved
from numpy.typing import NDArray

from primepar.models import ModelConfig

Array = NDArray[np.float32]


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
