"""Steps with AdamW and SGD on emulated devices, with all state, compared with one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from partitioned_cases import drawn_batch, drawn_parameters, farthest, plan_apart
from profiles import few
from step_cases import SMALL

from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import Optimizer
from primepar.plan import Plan, preset_plan
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.kernels import KERNELS
from primepar.reference.oracle.layers import Array
from primepar.reference.oracle.train import SGD, AdamW, linear_weights
from primepar.reference.oracle.transformer import Transformer

STEPS, RATE, CLIP = 3, 1e-3, 0.5
EACH = [
    ("megatron", 4, "gpt2"), ("megatron-sp", 4, "opt"), ("summa", 4, "llama"),
    ("tesseract", 4, "bloom"), ("primepar", 4, "gpt2"), ("stationary", 4, "opt"),
    ("data", 4, "llama"), ("3d", 8, "bloom"), ("M2,megatron", 8, "llama"),
]  # fmt: skip
"""Every preset plan and every family."""
UNSEEN = {"loss.largest"}
"""Kernels whose result may be any number that is near."""
OVER_DEVICES = {name for name in KERNELS if name.startswith("online.")}
"""Kernels of attention over devices, which `test_attention_methods` compares with dense ones."""
ELSEWHERE = {"sgd.update", "regression.residual", "regression.gradient", "workers.average"}
"""Kernels that are in no step with AdamW."""
RMS_NORM = {"norm.square"}
"""Kernels of a norm without a mean, which gpt2 does not have."""


class OneDevice:
    """A model on one device, updated by the oracle."""

    def __init__(self, config: ModelConfig, clip: float | None, optimizer: Optimizer) -> None:
        self.model, self.clip = Transformer(config, drawn_parameters(config)), clip
        adamw = AdamW(RATE, weight_decay=0.1, decayed=linear_weights(config))
        self.optimizer = adamw if optimizer == "adamw" else SGD(RATE)
        self.kept = (("m", 0.9, 1), ("v", 0.95, 2)) if optimizer == "adamw" else ()
        self.moments: dict[str, Array] = {}

    def update(self, draw: Draw) -> tuple[float, float]:
        """Give the loss and the norm of the gradient."""
        batch = drawn_batch(self.model.config, 8, 4)
        loss, gradients = self.model.loss_and_gradients(*batch, draw)
        norm = float(np.sqrt(sum(np.sum(gradient**2) for gradient in gradients.values())))
        factor = 1.0 if self.clip is None else min(1.0, self.clip / norm)
        clipped: dict[str, Array] = {
            name: gradient * factor for name, gradient in gradients.items()
        }
        for name, gradient in clipped.items():
            for moment, beta, power in self.kept:
                before = self.moments.get(f"{name}.{moment}", 0.0)
                self.moments[f"{name}.{moment}"] = beta * before + (1 - beta) * gradient**power
        self.model.parameters = self.optimizer.step(self.model.parameters, clipped)
        return loss, norm


def assert_trains_alike(plan: Plan, clip: float | None, optimizer: Optimizer = "adamw") -> None:
    """Loss, norm, parameters and moments of some steps are those of one device."""
    one = OneDevice(plan.model, clip, optimizer)
    emulated = EmulatedModel(plan.model, plan, drawn_parameters(plan.model), optimizer)
    for number in range(STEPS):
        draw = Draw(seed=3, step=number)
        step = emulated.update(*drawn_batch(plan.model, 8, 4), RATE, draw, clip)
        loss, norm = one.update(draw)
        assert step.loss == pytest.approx(loss, rel=1e-10)
        assert step.norm == pytest.approx(norm, rel=1e-10)
        left = {**one.model.parameters, **one.moments}
        assert farthest({**emulated.parameters, **emulated.moments}, left) < 1e-10
    assert clip is None or norm > clip


@few
@pytest.mark.parametrize(
    ("name", "ranks", "family", "clip", "optimizer"),
    [
        (*case, clip, optimizer)
        for optimizer, cases in (("adamw", EACH), ("sgd", EACH[::4]))
        for case in cases
        for clip in (None, CLIP)
    ],
)
def test_under_a_preset_an_optimizer_leaves_what_it_leaves_on_one_device(
    name: str, ranks: int, family: str, clip: float | None, optimizer: Optimizer
) -> None:
    assert_trains_alike(preset_plan(name, SMALL[family], ranks), clip, optimizer)


@pytest.mark.parametrize("clip", [None, CLIP])
def test_several_blocks_of_a_weight_on_a_device_are_updated_too(clip: float | None) -> None:
    assert_trains_alike(plan_apart(SMALL["opt"], 4), clip)


def test_a_gradient_below_the_clip_is_left_as_it_is() -> None:
    states = []
    for clip in (None, 1e6):
        plan = preset_plan("data", SMALL["gpt2"], 2)
        model = EmulatedModel(plan.model, plan, drawn_parameters(plan.model))
        model.update(*drawn_batch(plan.model, 8, 4), RATE, clip=clip)
        states.append({**model.parameters, **model.moments})
    assert all(np.array_equal(states[1][name], array) for name, array in states[0].items())


@few
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("name", ["primepar", "megatron"])
def test_masters_are_updated_as_parameters_are_without_them(
    name: str, optimizer: Optimizer
) -> None:
    config = SMALL["gpt2"]
    plan = preset_plan(name, config, 4)
    without, model = (
        EmulatedModel(config, plan, drawn_parameters(config), optimizer, masters)
        for masters in (False, True)
    )
    for number in range(2):
        for one in (without, model):
            one.update(*drawn_batch(config, 8, 4), RATE, Draw(seed=3, step=number), CLIP)
        for parameter, array in without.parameters.items():
            assert np.array_equal(model.parameters[parameter], array)
            assert np.array_equal(model.moments[f"{parameter}.master"], array)
    assert without.moments.keys() == {
        name for name in model.moments if not name.endswith(".master")
    }


def updated(name: str) -> dict[str, Array]:
    """What a step leaves in which a kernel is used: parts of sequences or of rows, clipped."""
    config = SMALL["llama" if name in RMS_NORM else "gpt2"]
    preset = "primepar" if name.startswith(("norm.", "loss.")) else "data"
    plan, given = preset_plan(preset, config, 4), drawn_parameters(config)
    model = EmulatedModel(config, plan, given, masters=True)
    step = model.update(*drawn_batch(config, 2, 4), RATE, Draw(seed=3, step=5), clip=CLIP)
    numbers = {"loss": np.array([step.loss]), "norm": np.array([step.norm])}
    return {**model.parameters, **model.moments, **numbers}


@few
@pytest.mark.parametrize("name", sorted(KERNELS.keys() - UNSEEN - ELSEWHERE - OVER_DEVICES))
def test_a_wrong_kernel_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, kernel, calls = updated(name), KERNELS[name], []

    def wrong(*arguments: Any) -> Array:
        calls.append(name)
        return kernel(*arguments) * (1 + 1e-6)

    monkeypatch.setitem(KERNELS, name, wrong)
    assert farthest(updated(name), right) > 1e-8
    assert calls
