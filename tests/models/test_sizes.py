"""Sizes of published models, and of any config.json: parameters as published and as counted.

Two oracles: the counts that the publishers print, and transformers, which builds each architecture
on torch's meta device.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from primepar.errors import ConfigError
from primepar.models import ModelConfig, load_config
from primepar.models.config import flops_per_token
from primepar.models.sizes import FAMILIES, MODELS, find_model, read_sizes

HUB = {
    "gpt2": 124439808, "gpt2-xl": 1557611200, "bloom-7b1": 7069016064, "bloom-176b": 176247271424,
    "llama-2-7b": 6738415616, "llama-2-13b": 13015864320, "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.1-8b": 8030261248,
    "llama-3.1-70b": 70553706496, "llama-3.1-405b": 405853388800, "llama-3.2-1b": 1235814400,
    "llama-3.2-3b": 3212749824, "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704,
    "mixtral-8x22b": 140620634112, "qwen2.5-7b": 7615616512, "qwen2.5-72b": 72706203648,
    "qwen3-0.6b": 596049920, "qwen3-8b": 8190735360, "qwen3-32b": 32762123264,
    "qwen3-30b-a3b": 30532122624, "qwen3-235b-a22b": 235093634560, "gemma-7b": 8537680896,
    "gemma-2-9b": 9241705984, "gemma-2-27b": 27227128320, "gemma-3-1b": 999885952,
    "phi-2": 2779683840, "phi-4": 14659507200, "deepseek-v2-lite": 15706484224,
    "deepseek-v2": 235741434880,
}  # fmt: skip
"""Parameters that Hugging Face prints for the weights of a model, a tied table once."""
PAPERS = {
    "gpt-3": (175, 175),  # Brown et al. 2020
    "opt-6.7b": (6.7, 6.7), "opt-175b": (175, 175),  # Zhang et al. 2022
    "qwen3-235b-a22b": (235, 22), "qwen3-30b-a3b": (30.5, 3.3),  # Qwen3 Technical Report, table 2
    "mixtral-8x7b": (46.7, 12.9), "mixtral-8x22b": (141, 39),  # Mistral: announcements
    "deepseek-v2": (236, 21),  # DeepSeek-V2, abstract
    "deepseek-v3": (671, 37),  # DeepSeek-V3, abstract
    "gpt-oss-20b": (20.91, 3.61), "gpt-oss-120b": (116.83, 5.13),  # OpenAI: model card, table 1
}  # fmt: skip
"""Billions of parameters and of those that a token meets, as the publishers round them."""


def active_parameters(model: ModelConfig) -> int:
    """Number of parameters that one token meets: of routed experts, the chosen ones."""
    idle = model.experts.count - model.experts.chosen if model.experts else 0
    routed = (shape for name, shape in model.parameter_shapes.items() if "routed" in name)
    return model.parameters - sum(idle * prod(shape[1:]) for shape in routed)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_the_published_number_of_parameters(name: str) -> None:
    model = find_model(name)
    assert model is MODELS[name] is find_model(name.upper())
    assert name in HUB or name in PAPERS
    assert model.parameters == HUB.get(name, model.parameters)
    if name in PAPERS:
        total, active = PAPERS[name]
        # The card of gpt-oss does not count the embedding's table as active.
        table = model.vocabulary * model.hidden * name.startswith("gpt-oss")
        counted = active_parameters(model) - table
        assert model.parameters / 1e9 == pytest.approx(total, rel=0.007)
        assert counted / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("kind", FAMILIES)
def test_sizes_are_those_that_transformers_builds(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = "n_layer" if kind in ("gpt2", "bloom") else "num_hidden_layers"
    chosen = {"num_experts_per_tok": 2} if kind == "deepseek_v2" else {}  # None by default
    given = AutoConfig.for_model(kind, **{layers: 8}, **chosen)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(given)
    built.tie_weights()
    content = json.loads(given.to_json_string())
    sizes = read_sizes(content)
    rows = {"opt": 2 * given.hidden_size}.get(kind, 0)  # rows of padding, which no token has
    # A bias of the router in DeepSeek-V3 is no parameter there, but is in the published count.
    buffers = sum(buffer.numel() for name, buffer in built.named_buffers() if "bias" in name)
    parameters = sum(tensor.numel() for tensor in built.parameters())
    assert sizes.parameters + rows == parameters + buffers * (kind == "deepseek_v3")
    del content["model_type"]
    with pytest.raises(ConfigError, match=r"^model_type: expected one of gpt2, opt, .* got none: "):
        read_sizes(content)


def test_a_file_that_the_trainer_reads_is_its_model_and_any_other_has_sizes(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    llama = MIXTRAL | {"model_type": "llama", "num_local_experts": None}
    file.write_text(json.dumps(llama))
    assert find_model(str(file)) == find_model(str(tmp_path)) == load_config(file)
    file.write_text(json.dumps(llama | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}))
    with pytest.raises(ConfigError, match=r"rope_scaling\.rope_type: expected"):
        load_config(file)
    assert find_model(str(file)).linear_shapes == read_sizes(llama).linear_shapes
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": GEMMA}))
    assert find_model(str(file)).parameters == HUB["gemma-3-1b"]


GEMMA = {
    "model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152,
    "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912, "head_dim": 256,
    "max_position_embeddings": 32768, "vocab_size": 262144, "sliding_window": 512,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 64, "vocab_size": 100,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = MIXTRAL | {
    "model_type": "deepseek_v3", "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "qk_nope_head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        (MIXTRAL, {"model_type": "mixtrall"},
         "model_type: expected one of gpt2, opt, bloom, llama, mistral, mixtral, qwen2, qwen2_moe, "
         "qwen3, qwen3_moe, gemma, gemma2, gemma3_text, phi, phi3, deepseek_v2, deepseek_v3, "
         'gpt_oss, got "mixtrall": write mixtral'),
        (MIXTRAL, {"hidden_size": "64"},
         'hidden_size: expected 1 or more, got "64": take the config.json that came with the '
         "weights"),
        (MIXTRAL, {"intermediate_size": None},
         "expected the key intermediate_size or ffn_dim or n_inner, got none: take the config.json "
         "that came with the weights"),
        (MIXTRAL, {"hidden_act": "sil"},
         "hidden_act: expected one of gelu_new, gelu_pytorch_tanh, gelu, relu, silu, swish, got "
         '"sil": write silu'),
        (MIXTRAL, {"num_experts_per_tok": None},
         "expected the key num_experts_per_tok or experts_per_token with num_local_experts, got "
         "none: take the config.json that came with the weights"),
        (MIXTRAL, {"num_experts_per_tok": 5},
         "num_experts_per_tok: expected 1 to 4 experts, in at most 2 layers, got 5 with 0 layers "
         "without: correct them"),
        (DEEPSEEK, {"v_head_dim": None},
         "expected the key v_head_dim with kv_lora_rank, got none: take the config.json that came "
         "with the weights"),
        (DEEPSEEK, {"moe_layer_freq": 2},
         "moe_layer_freq: expected 1, got 2: this variant has other sizes; write those of a "
         "model like it"),
        (MIXTRAL, {"num_key_value_heads": 3},
         "kv_heads: expected a divisor of heads=4, got 3"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_one_line(
    content: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    read_sizes(content)
    with pytest.raises(ConfigError) as caught:
        read_sizes(content | changed)
    assert str(caught.value) == message


def test_the_mean_number_of_keys_that_a_query_attends_to() -> None:
    model = read_sizes(GEMMA | {"sliding_window": 2})
    whole, windowed = (1 + 2 + 3 + 4) / 4, (1 + 2 + 2 + 2) / 4
    assert model.attended(4) == pytest.approx((4 * whole + 22 * windowed) / 26)
    assert model.attended(2) == 1.5
    assert read_sizes(MIXTRAL).attended(4, causal=False) == 4


def test_operations_of_a_token_count_the_chosen_experts_alone() -> None:
    sparse, dense = read_sizes(MIXTRAL), read_sizes(MIXTRAL | {"num_local_experts": 0})
    more = 3 * 64 * 96 + 4 * 64  # of two experts the second, and the router
    assert flops_per_token(sparse) - flops_per_token(dense) == 6 * 2 * more


def test_a_name_that_is_neither_a_model_nor_a_file_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("opt-13b")
    assert str(caught.value) == (
        "expected a config.json or the name of a published model, got opt-13b: write opt-175b, "
        "opt-6.7b or gpt-3"
    )
