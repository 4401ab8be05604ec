"""The weights of the transformers library give its logits and its gradients.

The saved models are random ones of every family and of what each may vary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_cases import CONFIGS, Saved, difference, saved_model
from profiles import few

from primepar.models import ModelConfig, WeightFile, load_config, write_weights
from primepar.plan import preset_plan
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.transformer import Transformer

pytest.importorskip("transformers")

# Llama's library computes norms and rotations, BLOOM's the softmax, in float32 for any weights.
TOLERANCES = {"gpt2": 1e-9, "opt": 1e-9, "llama": 1e-5, "bloom": 1e-5}


def batch(config: ModelConfig) -> Tokens:
    """Tokens of 3 sequences of 10 positions."""
    tokens: Tokens = np.random.default_rng(1).integers(0, config.vocabulary, (3, 10))
    return tokens


def parameters(saved: Saved) -> dict[str, Array]:
    """Parameters of the saved model, by our names."""
    file = WeightFile(saved.folder, saved.config)
    return {name: file.read_block(name) for name in saved.config.parameter_shapes}


def their_step(saved: Saved, tokens_BT: Tokens) -> tuple[Array, float]:
    """Logits and loss of the library; the gradients stay in its parameters."""
    torch: Any = pytest.importorskip("torch")
    tokens = torch.tensor(tokens_BT)
    logits = saved.model(tokens).logits
    targets = torch.tensor(np.roll(tokens_BT, 3))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return logits.detach().numpy(), loss.item()


@few
@pytest.mark.parametrize("name", CONFIGS)
def test_saved_weights_give_the_logits_of_the_library(name: str, tmp_path: Path) -> None:
    saved = saved_model(name, tmp_path)
    config = load_config(tmp_path)
    ours = Transformer(config, parameters(saved)).logits(batch(config))
    theirs, _ = their_step(saved, batch(config))
    assert ours.dtype == theirs.dtype == np.float32
    assert difference(ours, theirs) < 1e-5


@few
@pytest.mark.parametrize("name", CONFIGS)
def test_emulated_devices_have_the_logits_of_the_library(name: str, tmp_path: Path) -> None:
    saved = saved_model(name, tmp_path)
    config = load_config(tmp_path)
    plan = preset_plan("primepar" if config.kv_heads > 1 else "data", config, 4)
    tokens = np.concatenate([batch(config), batch(config)[:1]])
    ours = EmulatedModel(config, plan, parameters(saved)).logits(tokens)
    theirs, _ = their_step(saved, tokens)
    assert ours.dtype == theirs.dtype == np.float32
    assert difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_in_float64_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    saved = saved_model(name, tmp_path / "weights", "float64")
    tokens, config = batch(saved.config), saved.config
    model = Transformer(config, parameters(saved))
    loss, gradients = model.loss_and_gradients(tokens, np.roll(tokens, 3))
    _, their_loss = their_step(saved, tokens)
    tolerance = TOLERANCES[config.family]
    assert loss == pytest.approx(their_loss, rel=tolerance)
    theirs = their_gradients(saved, tmp_path / "gradients")
    for parameter, gradient in gradients.items():
        assert difference(gradient, theirs[parameter]) < tolerance, parameter


def their_gradients(saved: Saved, folder: Path) -> dict[str, Array]:
    """The library's gradients by our names: as weights of a model that is saved and read."""
    torch: Any = pytest.importorskip("torch")
    with torch.no_grad():
        for parameter in saved.model.parameters():
            parameter.copy_(parameter.grad)
    saved.model.save_pretrained(folder)
    return parameters(Saved(saved.model, folder, saved.config))


def test_weights_that_are_written_and_read_give_the_same_logits(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    model = Transformer.initial(config, dtype=np.float32)
    write_weights(tmp_path / "model.safetensors", config, model.parameters)
    file = WeightFile(tmp_path / "model.safetensors", config)
    again = {name: file.read_block(name) for name in config.parameter_shapes}
    logits = Transformer(config, again).logits(batch(config))
    assert np.array_equal(logits, model.logits(batch(config)))
