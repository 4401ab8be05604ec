"""The models that every path builds: sizes, parts, operators, parameters before training."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from model_cases import CONFIGS, SIZES

from primepar.errors import ConfigError
from primepar.models import GPTConfig, ModelConfig, Operator, initial_parameter, operators

CONFIG = GPTConfig(layers=2, hidden=8, heads=2, context=5, vocabulary=11)
every_config = pytest.mark.parametrize("config", [CONFIG, *CONFIGS.values()], ids=["gpt", *CONFIGS])


def test_linear_operators_come_in_the_order_of_execution() -> None:
    assert CONFIG.linear_shapes == {
        "blocks.0.qkv": (8, 24),
        "blocks.0.proj": (8, 8),
        "blocks.0.fc1": (8, 32),
        "blocks.0.fc2": (32, 8),
        "blocks.1.qkv": (8, 24),
        "blocks.1.proj": (8, 8),
        "blocks.1.fc1": (8, 32),
        "blocks.1.fc2": (32, 8),
        "head": (8, 11),
    }
    assert list(CONFIG.linear_shapes)[3:5] == ["blocks.0.fc2", "blocks.1.qkv"]


def test_the_parameters_are_counted() -> None:
    tables, norms, blocks, head = (11 + 5) * 8, 5 * 2 * 8, 2 * 12 * 8 * 8, 8 * 11
    assert CONFIG.parameters == tables + norms + blocks + head


def test_a_parameter_is_the_same_for_one_seed_and_another_for_the_next() -> None:
    first, again = (initial_parameter(CONFIG, "head.weight", seed=3) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, initial_parameter(CONFIG, "head.weight", seed=4))


def test_two_parameters_of_one_shape_start_apart() -> None:
    first, second = (initial_parameter(CONFIG, f"blocks.{n}.qkv.weight", seed=0) for n in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["blocks.0.proj.weight", "blocks.0.fc2.weight"])
def test_the_end_of_a_residual_branch_starts_smaller_in_a_deeper_model(name: str) -> None:
    one, four = (GPTConfig(layers=n, hidden=8, heads=2) for n in (1, 4))
    shallow, deep = (initial_parameter(config, name, seed=0) for config in (one, four))
    assert np.array_equal(shallow, 2 * deep)


def test_other_weights_start_alike_in_a_deeper_model() -> None:
    one, four = (GPTConfig(layers=n, hidden=8, heads=2) for n in (1, 4))
    shallow, deep = (initial_parameter(c, "blocks.0.qkv.weight", seed=0) for c in (one, four))
    assert np.array_equal(shallow, deep)
    assert 0.015 < shallow.std() < 0.025


# The families


def test_our_own_gpt_is_a_model_like_any_other() -> None:
    model = ModelConfig.of("gpt", layers=2, hidden=8, heads=2, context=5, vocabulary=11)
    assert model == CONFIG
    assert hash(CONFIG) == hash(model)
    assert ModelConfig.of("gpt", layers=1, hidden=8, heads=2, context=5, vocabulary=11) != CONFIG


@every_config
def test_a_model_is_the_same_after_a_copy_or_a_file(config: ModelConfig) -> None:
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config


def test_a_gpt2_has_biases_and_no_head_of_its_own() -> None:
    config = ModelConfig.of("gpt2", layers=1, hidden=8, heads=2, context=5, vocabulary=11)
    assert config.parameter_shapes == {
        "embedding.token": (11, 8),
        "embedding.position": (5, 8),
        "blocks.0.norm1.weight": (8,),
        "blocks.0.norm1.bias": (8,),
        "blocks.0.norm2.weight": (8,),
        "blocks.0.norm2.bias": (8,),
        "norm.weight": (8,),
        "norm.bias": (8,),
        "blocks.0.qkv.weight": (8, 24),
        "blocks.0.qkv.bias": (24,),
        "blocks.0.proj.weight": (8, 8),
        "blocks.0.proj.bias": (8,),
        "blocks.0.fc1.weight": (8, 32),
        "blocks.0.fc1.bias": (32,),
        "blocks.0.fc2.weight": (32, 8),
        "blocks.0.fc2.bias": (8,),
    }


def test_a_llama_has_groups_of_heads_and_pairs_of_columns() -> None:
    config = ModelConfig.of(
        "llama", layers=1, hidden=8, heads=4, kv_heads=2, ffn=5, context=5, vocabulary=11
    )
    assert config.group_columns == (2 + 2) * 2
    assert config.parameter_shapes == {
        "embedding.token": (11, 8),
        "blocks.0.norm1.weight": (8,),
        "blocks.0.norm2.weight": (8,),
        "norm.weight": (8,),
        "blocks.0.qkv.weight": (8, 16),
        "blocks.0.proj.weight": (8, 8),
        "blocks.0.fc1.weight": (8, 10),
        "blocks.0.fc2.weight": (5, 8),
        "head.weight": (8, 11),
    }


def test_heads_may_be_wider_or_narrower_than_the_hidden_size_shares_out() -> None:
    config = ModelConfig.of(
        "llama", layers=1, hidden=8, heads=3, head_dim=4, context=5, vocabulary=11
    )
    assert config.linear_shapes["blocks.0.qkv"] == (8, 36)
    assert config.linear_shapes["blocks.0.proj"] == (12, 8)


def test_a_bloom_has_a_norm_after_its_embedding_and_no_positions() -> None:
    shapes = CONFIGS["bloom"].parameter_shapes
    assert shapes["embedding.norm.weight"] == shapes["embedding.norm.bias"] == (24,)
    assert "embedding.position" not in shapes


@every_config
def test_every_parameter_of_every_family_has_its_start(config: ModelConfig) -> None:
    for name, shape in config.parameter_shapes.items():
        value = initial_parameter(config, name, seed=0)
        assert value.shape == shape
        if name.endswith("bias"):
            assert not value.any()
        elif "norm" in name:
            assert (value == 1).all()
        else:
            assert value.std() > 0


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("gpt3", {}, "family: expected one of gpt, gpt2, opt, llama, bloom, got 'gpt3'"),
        *(("gpt", {size: 0}, f"{size}: expected 1 or more, got 0")
          for size in ("layers", "hidden", "heads", "context", "vocabulary", "kv_heads", "ffn")),
        ("gpt", {"heads": 7}, "heads: expected a divisor of hidden=24, got 7"),
        ("llama", {"kv_heads": 3}, "kv_heads: expected a divisor of heads=4, got 3"),
        ("gpt2", {"kv_heads": 2}, "kv_heads: expected 4 in the family gpt2, got 2"),
        ("opt", {"head_dim": 5},
         "head_dim: expected hidden / heads = 24 / 4 in the family opt, got 5"),
        ("opt", {"norm": "rms"}, "norm: expected 'layer' in the family opt, got 'rms'"),
        ("llama", {"norm": "batch"}, "norm: expected one of layer, rms, got 'batch'"),
        ("bloom", {"gated": True}, "gated: expected False in the family bloom, got True"),
        ("bloom", {"positions": "rotary"},
         "positions: expected 'alibi' in the family bloom, got 'rotary'"),
        ("gpt2", {"embedding_norm": True},
         "embedding_norm: expected False in the family gpt2, got True"),
        ("gpt", {"positions": "none"},
         "positions: expected one of learned, rotary, alibi, got 'none'"),
        ("gpt", {"activation": "tanh"},
         "activation: expected one of gelu_tanh, gelu, relu, silu, got 'tanh'"),
        ("gpt", {"positions": "rotary", "head_dim": 3},
         "head_dim: expected an even number for rotary positions, got 3"),
        ("gpt", {"epsilon": 0.0}, "epsilon: expected a positive number, got 0.0"),
        ("gpt", {"rope_theta": float("nan")}, "rope_theta: expected a positive number, got nan"),
        ("gpt", {"dropout": 1.0},
         "dropout: expected a probability of at least 0 and below 1, got 1.0"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(
    family: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.of(family, **(SIZES | fields))
    assert str(error.value) == message


def test_our_own_family_mixes_parts_freely() -> None:
    parts: dict[str, Any] = {
        "norm": "rms",
        "gated": True,
        "positions": "alibi",
        "kv_heads": 2,
        "tied": True,
    }
    config = ModelConfig.of("gpt", **SIZES, **parts)
    assert config.linear_shapes["blocks.0.qkv"] == (24, 2 * 4 * 6)
    assert config.linear_shapes["blocks.0.fc1"] == (24, 2 * 96)


# The graph


def test_a_block_of_a_gpt_is_ten_operators_between_embedding_and_loss() -> None:
    config = GPTConfig(layers=1, hidden=8, heads=2, context=5, vocabulary=11)
    assert operators(config) == (
        Operator("embedding", "embedding", (), 11, 8),
        Operator("blocks.0.norm1", "norm", ("embedding",), 8, 8),
        Operator("blocks.0.qkv", "linear", ("blocks.0.norm1",), 8, 24),
        Operator("blocks.0.attention", "attention", ("blocks.0.qkv",), 24, 8),
        Operator("blocks.0.proj", "linear", ("blocks.0.attention",), 8, 8),
        Operator("blocks.0.add1", "add", ("embedding", "blocks.0.proj"), 8, 8),
        Operator("blocks.0.norm2", "norm", ("blocks.0.add1",), 8, 8),
        Operator("blocks.0.fc1", "linear", ("blocks.0.norm2",), 8, 32),
        Operator("blocks.0.act", "activation", ("blocks.0.fc1",), 32, 32),
        Operator("blocks.0.fc2", "linear", ("blocks.0.act",), 32, 8),
        Operator("blocks.0.add2", "add", ("blocks.0.add1", "blocks.0.fc2"), 8, 8),
        Operator("norm", "norm", ("blocks.0.add2",), 8, 8),
        Operator("head", "linear", ("norm",), 8, 11),
        Operator("loss", "loss", ("head",), 11, 11),
    )


def test_a_bloom_starts_its_stream_after_the_norm_of_the_embedding() -> None:
    by_name = {operator.name: operator for operator in operators(CONFIGS["bloom"])}
    assert by_name["embedding.norm"].inputs == ("embedding",)
    assert by_name["blocks.0.norm1"].inputs == ("embedding.norm",)
    assert by_name["blocks.0.add1"].inputs == ("embedding.norm", "blocks.0.proj")


def test_a_gated_activation_takes_pairs() -> None:
    by_name = {operator.name: operator for operator in operators(CONFIGS["llama"])}
    assert (by_name["blocks.1.act"].N, by_name["blocks.1.act"].K) == (2 * 28, 28)


@every_config
def test_operators_come_after_their_inputs_and_take_what_these_make(config: ModelConfig) -> None:
    done: dict[str, Operator] = {}
    for operator in operators(config):
        for name in operator.inputs:
            assert done[name].K == operator.N
        done[operator.name] = operator
    linear = {name: (op.N, op.K) for name, op in done.items() if op.kind == "linear"}
    assert linear == config.linear_shapes
    used = {name for operator in done.values() for name in operator.inputs}
    assert done.keys() - used == {"loss"}


def test_models_load_no_framework() -> None:
    script = (
        "import sys, primepar.models\n"
        "print(*{'torch', 'transformers', 'safetensors', 'z3', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "")
