"""Tiny random models of the transformers library, saved as it saves them: the oracle of ours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.models import GPTConfig, ModelConfig, initial_parameter

SIZES = {"layers": 2, "hidden": 24, "heads": 4, "context": 10, "vocabulary": 21}

CONFIGS = {
    "gpt2": ModelConfig.of("gpt2", **SIZES, dropout=0.1, embedding_dropout=0.2, ffn=30),
    "gpt2-untied": ModelConfig.of("gpt2", **SIZES, tied=False, activation="relu"),
    "opt": ModelConfig.of("opt", **SIZES, dropout=0.1, ffn=40),
    "opt-unbiased": ModelConfig.of("opt", **SIZES, attention_bias=False, mlp_bias=False),
    "llama": ModelConfig.of("llama", **SIZES, kv_heads=2, ffn=28, rope_theta=500.0),
    "llama-tied": ModelConfig.of("llama", **SIZES, kv_heads=1, tied=True, epsilon=1e-5),
    "llama-biased": ModelConfig.of(
        "llama", **SIZES, head_dim=8, attention_bias=True, mlp_bias=True, attention_dropout=0.1
    ),
    "bloom": ModelConfig.of("bloom", **SIZES | {"context": 2048}, dropout=0.1),
}

OURS = GPTConfig(layers=1, hidden=4, heads=2, context=3, vocabulary=5)


def drawn(config: ModelConfig) -> dict[str, Any]:
    return {name: initial_parameter(config, name, seed=1) for name in config.parameter_shapes}


def difference(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference by the largest expected element."""
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@dataclass(frozen=True)
class Saved:
    """A model of theirs, the folder that it was saved in, and our configuration of it."""

    model: Any
    folder: Path
    config: ModelConfig

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor of theirs by name."""
        array: NDArray[np.float32] = self.model.state_dict()[name].numpy()
        return array


def saved_model(name: str, folder: Path, dtype: str = "float32") -> Saved:
    """Build the model of CONFIGS[name] with random parameters, biases and norms too; save it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    config = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(_theirs(config))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    model = model.to(getattr(torch, dtype)).eval()
    model.save_pretrained(folder)
    return Saved(model, folder, config)


def _theirs(config: ModelConfig) -> Any:
    from transformers import BloomConfig, GPT2Config, LlamaConfig, OPTConfig

    common: dict[str, Any] = {"vocab_size": config.vocabulary, "tie_word_embeddings": config.tied}
    common |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if config.family == "gpt2":
        return GPT2Config(
            n_embd=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=None if config.ffn == 4 * config.hidden else config.ffn,
            n_positions=config.context,
            layer_norm_epsilon=config.epsilon,
            activation_function={"gelu_tanh": "gelu_new"}.get(config.activation, config.activation),
            resid_pdrop=config.dropout,
            embd_pdrop=config.embedding_dropout,
            attn_pdrop=config.attention_dropout,
            **common,
        )
    if config.family == "bloom":
        return BloomConfig(
            hidden_size=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            hidden_dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            layer_norm_epsilon=config.epsilon,
            **common,
        )
    common |= {
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.context,
        "attention_dropout": config.attention_dropout,
    }
    if config.family == "opt":
        return OPTConfig(
            ffn_dim=config.ffn,
            word_embed_proj_dim=config.hidden,
            activation_function=config.activation,
            enable_bias=config.attention_bias,
            dropout=config.dropout,
            **common,
        )
    return LlamaConfig(
        intermediate_size=config.ffn,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.epsilon,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        rope_parameters={"rope_theta": config.rope_theta, "rope_type": "default"},
        **common,
    )
