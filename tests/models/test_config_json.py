"""Hugging Face config.json in old and new spellings, and wrong ones refused.

The oracle is the transformers library, which writes the new spellings; the old ones are those of
the published files, whose models have known numbers of parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_cases import CONFIGS, saved_model
from profiles import few

from primepar.errors import ConfigError
from primepar.models import ModelConfig, load_config
from primepar.models.config_json import FAMILIES as SPELT

GPT2 = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
}
OPT = {
    "activation_function": "relu",
    "attention_dropout": 0.0,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "torch_dtype": "float16",
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}
LLAMA = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
BLOOM = {
    "hidden_dropout": 0.0,
    "layer_norm_epsilon": 1e-05,
    "model_type": "bloom",
    "n_embed": 1024,
    "n_inner": None,
    "n_layer": 24,
    "num_attention_heads": 16,
    "seq_length": 2048,
    "vocab_size": 250880,
}
FAMILIES = {"gpt2": GPT2, "opt": OPT, "llama": LLAMA, "bloom": BLOOM}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def loaded(path: Path, content: object) -> ModelConfig:
    path.write_text(json.dumps(content))
    return load_config(path)


def refused(path: Path, content: object) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(path, content)
    return str(error.value).removeprefix(f"{path}: ")


# Right files


@few
@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_writes_is_read_as_it_was_meant(name: str, tmp_path: Path) -> None:
    saved = saved_model(name, tmp_path)
    assert load_config(tmp_path) == load_config(tmp_path / "config.json") == CONFIGS[name]
    assert saved.config == CONFIGS[name]


@pytest.mark.parametrize(
    ("content", "parameters"),
    [
        (GPT2, 124_439_808),
        (OPT, 125_239_296 - 2 * 768),  # their two rows for padding are none of ours
        (LLAMA, 6_738_415_616),
        (BLOOM, 559_214_592),
    ],
    ids=FAMILIES,
)
def test_the_published_models_have_their_numbers_of_parameters(
    path: Path, content: dict[str, Any], parameters: int
) -> None:
    assert loaded(path, content).parameters == parameters


@pytest.mark.parametrize(
    ("content", "old", "new"),
    [
        (GPT2, "n_embd", "hidden_size"),
        (GPT2, "n_layer", "num_hidden_layers"),
        (GPT2, "n_head", "num_attention_heads"),
        (GPT2, "n_positions", "max_position_embeddings"),
        (OPT, "torch_dtype", "dtype"),
        (LLAMA, "torch_dtype", "dtype"),
        (BLOOM, "n_embed", "hidden_size"),
        (BLOOM, "n_layer", "num_hidden_layers"),
        (BLOOM, "num_attention_heads", "n_head"),
    ],
)
def test_old_and_new_spellings_mean_the_same(
    path: Path, content: dict[str, Any], old: str, new: str
) -> None:
    expected = loaded(path, content)
    respelt = {new if key == old else key: value for key, value in content.items()}
    assert loaded(path, respelt) == expected
    assert loaded(path, content | respelt) == expected


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 500000.0},
        {"rope_theta": 500000},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        {"rope_theta": 500000.0, "rope_parameters": {"rope_theta": 500000.0}},
    ],
)
def test_the_base_of_rotary_angles_has_two_places(path: Path, spelling: dict[str, Any]) -> None:
    assert loaded(path, LLAMA | spelling).rope_theta == 500000.0
    assert loaded(path, LLAMA).rope_theta == 10000.0


def test_an_inner_size_of_gpt2_is_four_times_the_hidden_one_unless_given(path: Path) -> None:
    assert loaded(path, GPT2).ffn == loaded(path, GPT2 | {"n_inner": None}).ffn == 4 * 768
    assert loaded(path, GPT2 | {"n_inner": 1000}).ffn == 1000


def test_a_llama_without_key_value_heads_has_one_for_every_head(path: Path) -> None:
    assert loaded(path, {**LLAMA, "num_key_value_heads": None}).kv_heads == 32
    assert loaded(path, {**LLAMA, "num_key_value_heads": 8}).kv_heads == 8


def test_a_head_dim_of_its_own_is_taken(path: Path) -> None:
    assert loaded(path, LLAMA).head_dim == 128
    assert loaded(path, LLAMA | {"head_dim": 64}).head_dim == 64


# Wrong files

NEEDED = [
    (family, key, " or ".join(keys))
    for family, known in SPELT.items()
    for field, keys in known.spellings.items()
    for key in keys
    if field not in known.defaults and key in FAMILIES[family]
]
"""Every size of a family: its key in the file above, and all its spellings."""
VARIANTS = [
    (family, key, value)
    for family, known in SPELT.items()
    for key, value in known.built.items()
    if isinstance(value, bool)
]
THEIRS = ": take the config.json that came with the weights"


@pytest.mark.parametrize(("family", "key", "spellings"), NEEDED)
def test_a_missing_key_is_reported(path: Path, family: str, key: str, spellings: str) -> None:
    content = {name: value for name, value in FAMILIES[family].items() if name != key}
    assert refused(path, content) == f"expected the key {spellings}, got none{THEIRS}"


@pytest.mark.parametrize(("family", "key", "built"), VARIANTS)
def test_a_variant_that_is_not_built_is_refused(
    path: Path, family: str, key: str, built: bool
) -> None:
    loaded(path, FAMILIES[family] | {key: built})
    yes, no = json.dumps(built), json.dumps(not built)
    assert refused(path, FAMILIES[family] | {key: not built}) == (
        f"{key}: expected {yes}, got {no}: this variant is not built here"
    )


def test_all_sizes_and_variants_are_asked_for() -> None:
    assert (len(NEEDED), len(VARIANTS)) == (21, 7)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model_type": "mistral"},
            'model_type: expected one of gpt2, opt, llama, bloom, got "mistral": write that '
            "of a model with the same operators",
        ),
        (GPT2 | {"n_embd": "768"}, 'n_embd: expected 1 or more, got "768"' + THEIRS),
        (GPT2 | {"n_layer": True}, "n_layer: expected 1 or more, got true" + THEIRS),
        (GPT2 | {"n_layer": 12.0}, "n_layer: expected 1 or more, got 12.0" + THEIRS),
        (GPT2 | {"n_layer": 0}, "n_layer: expected 1 or more, got 0" + THEIRS),
        (GPT2 | {"n_head": 0}, "n_head: expected 1 or more, got 0" + THEIRS),
        (GPT2 | {"n_head": 7}, "heads: expected a divisor of hidden=768, got 7"),
        (GPT2 | {"hidden_size": 1024}, "hidden_size: expected 768 as in n_embd, got 1024"),
        (
            GPT2 | {"resid_pdrop": "no"},
            'resid_pdrop: expected a probability of at least 0 and below 1, got "no"' + THEIRS,
        ),
        (
            GPT2 | {"layer_norm_epsilon": 0},
            "layer_norm_epsilon: expected a positive number, got 0" + THEIRS,
        ),
        (
            GPT2 | {"tie_word_embeddings": 1},
            "tie_word_embeddings: expected true or false, got 1" + THEIRS,
        ),
        (
            GPT2 | {"activation_function": "tanh"},
            "activation_function: expected one of gelu_new, gelu_pytorch_tanh, gelu, relu, silu, "
            'swish, got "tanh": write the nearest of them',
        ),
        (
            OPT | {"word_embed_proj_dim": 512},
            "word_embed_proj_dim: expected 768, got 512: this variant is not built here",
        ),
        (
            LLAMA | {"num_key_value_heads": 5},
            "kv_heads: expected a divisor of heads=32, got 5",
        ),
        (
            LLAMA | {"num_attention_heads": 48},
            "heads: expected a divisor of hidden=4096, got 48",
        ),
        (
            LLAMA | {"head_dim": 3},
            "head_dim: expected an even number for rotary positions, got 3",
        ),
        (
            LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            'rope_scaling.rope_type: expected "default", got "llama3": this variant is not built '
            "here",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}},
            'rope_scaling.type: expected "default", got "linear": this variant is not built here',
        ),
        (
            LLAMA | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}},
            'rope_parameters.rope_type: expected "default", got "yarn": this variant is not built '
            "here",
        ),
        (
            LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: expected 1.0, got 0.5: this variant is not "
            "built here",
        ),
        (
            LLAMA | {"rope_parameters": {"rope_theta": "big"}},
            'rope_parameters.rope_theta: expected a positive number, got "big"' + THEIRS,
        ),
        (
            LLAMA | {"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 1e6},
            "rope_theta: expected 10000.0 as in rope_parameters.rope_theta, got 1000000.0",
        ),
        (LLAMA | {"rope_parameters": 3}, "rope_parameters: expected an object, got 3"),
        (3, "expected a JSON object, got 3"),
    ],
)
def test_a_wrong_value_is_reported(path: Path, content: object, message: str) -> None:
    assert refused(path, content) == message


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ConfigError) as error:
            load_config(given)
        assert str(error.value) == (
            f"{tmp_path / 'config.json'}: expected a config.json, got no such file or directory"
        )


def test_broken_json_is_refused(path: Path) -> None:
    path.write_text('{"model_type": "gpt2",')
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value) == (f"{path}: expected JSON, got broken text: Input data was truncated")
