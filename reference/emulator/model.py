"""A whole model under any plan on emulated devices, with one program per step.

Full parameters, tokens and targets are cut into the program's initial blocks; its final blocks are
joined to full tensors. The oracle is `Transformer`, on one device.

Legend: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

import numpy as np

from primepar.models import ModelConfig, initial_parameter
from primepar.models.dropout import Draw
from primepar.operators import (
    MASTER,
    Optimizer,
    StepInputs,
    StepOptions,
    StepSettings,
    Until,
    lower_step,
    state_suffixes,
)
from primepar.plan.plan import Plan
from primepar.reference.emulator.contents import Array
from primepar.reference.emulator.executor import Emulation, emulate
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import StepKernels
from primepar.reference.oracle.layers import Tokens
from primepar.reference.oracle.transformer import Transformer, check_pair, check_parameters
from primepar.schedule.meaning import Meaning


@dataclass(frozen=True)
class ModelStep:
    """Result of a training step, and two counts for every rank.

    `sent` are the elements that a rank sends, `peak` its largest number of live elements.
    """

    loss: float
    gradients: dict[str, Array]
    """Full gradients by parameter; empty after an update."""
    sent: list[Fraction]
    peak: list[int]
    norm: float | None = None
    """Norm of the gradient before clipping; None without an update."""


class EmulatedModel:
    """A model with full `parameters`; in a step each rank holds the blocks of the plan.

    The vocabulary is padded with zeros to a size that the plan divides. Raises `ConfigError` if a
    parameter is missing, unknown or of another shape, and `PlanError` if the plan is for another
    model. Its methods raise `ConfigError` for tokens out of range, `PlanError` for a batch that the
    plan cannot cut, and `WrongDataError` if replicas differ.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan,
        parameters: Mapping[str, Array],
        optimizer: Optimizer = "adamw",
        masters: bool = False,
    ) -> None:
        plan.check_model(config)
        check_parameters(config, parameters)
        self.config, self.plan, self.parameters = config, plan, parameters
        self.optimizer: Optimizer = optimizer
        self.masters, kept = masters, state_suffixes(optimizer, masters)[1:]
        self.moments: dict[str, Array] = {
            f"{name}{suffix}": array.copy() if suffix == f".{MASTER}" else np.zeros_like(array)
            for name, array in parameters.items()
            for suffix in kept
        }
        """AdamW's moments of every parameter, `norm.weight.m` and `norm.weight.v`; with `masters`
        its copy too, `norm.weight.master`."""
        self.updates = 0
        self._known: dict[tuple[int, int, Until, StepOptions], Meaning] = {}

    def logits(self, tokens_BT: Tokens) -> Array:
        """Return the logits of every next token: (B, T, V)."""
        outputs, _ = self._run("logits", tokens_BT, tokens_BT, StepInputs())
        return outputs["head/O"].reshape(*tokens_BT.shape, -1)

    def loss(self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None) -> float:
        """Return the mean cross-entropy in nats. With a `draw`, dropout is on."""
        outputs, _ = self._run("loss", tokens_BT, targets_BT, StepInputs(draw))
        return float(outputs["loss"][0])

    def loss_and_gradients(
        self, tokens_BT: Tokens, targets_BT: Tokens, draw: Draw | None = None
    ) -> ModelStep:
        """Return the mean cross-entropy in nats and all parameters' gradients, without padding."""
        outputs, run = self._run("gradients", tokens_BT, targets_BT, StepInputs(draw))
        gradients = {name: outputs[f"{name}.grad"] for name in self.parameters}
        return ModelStep(float(outputs["loss"][0]), gradients, run.sent, run.peak)

    def update(
        self,
        tokens_BT: Tokens,
        targets_BT: Tokens,
        rate: float,
        draw: Draw | None = None,
        clip: float | None = None,
        loss_scale: float | None = None,
    ) -> ModelStep:
        """Update parameters and moments by the optimizer; returns the mean cross-entropy in nats.

        With `clip`, a gradient of a larger norm is scaled down to that norm. With `loss_scale`
        backward is of the scaled loss, and nothing changes if the gradient is not finite.
        """
        inputs = StepInputs(draw, rate, self.updates + 1, loss_scale)
        outputs, run = self._run("update", tokens_BT, targets_BT, inputs, clip)
        self.parameters = {name: outputs[f"{name}.new"] for name in self.parameters}
        self.moments = {name: outputs[f"{name}.new"] for name in self.moments}
        loss, norm = float(outputs["loss"][0]), float(outputs["gradient.norm"][0])
        self.updates += loss_scale is None or isfinite(norm)
        return ModelStep(loss, {}, run.sent, run.peak, norm)

    def _run(
        self,
        until: Until,
        tokens_BT: Tokens,
        targets_BT: Tokens,
        inputs: StepInputs,
        clip: float | None = None,
    ) -> tuple[dict[str, Array], Emulation]:
        """Run the program of a step; it is lowered once. Returns its outputs as full tensors."""
        check_pair(self.config, tokens_BT, targets_BT)
        batch, positions = tokens_BT.shape
        skips = inputs.loss_scale is not None
        options = StepOptions(clip, self.optimizer, masters=self.masters, skips=skips)
        key = batch, positions, until, options
        if key not in self._known:
            self._known[key] = Meaning(lower_step(self.plan, *key))
        meaning = self._known[key]
        rows = {"tokens": tokens_BT.reshape(-1), "targets": targets_BT.reshape(-1)}
        memories = spread_tensors(meaning, {**self.parameters, **self.moments, **rows})
        settings = StepSettings(self.config, batch, positions, clip)
        run = emulate(meaning.program, memories, kernels=StepKernels(settings, inputs))
        return gather_tensors(meaning, run.all_memories, self._ends(until, tokens_BT.size)), run

    def _ends(self, until: Until, rows: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes, without padding, of a program's outputs."""
        match until:
            case "logits":
                return {"head/O": (rows, self.config.vocabulary)}
            case "loss":
                return {"loss": (1,)}
            case "gradients":
                return {"loss": (1,)} | {
                    f"{name}.grad": array.shape for name, array in self.parameters.items()
                }
            case "update":
                old = {**self.parameters, **self.moments}
                new = {f"{name}.new": array.shape for name, array in old.items()}
                return {"loss": (1,), "gradient.norm": (1,)} | new


def step_difference(plan: Plan, batch: int, positions: int, seed: int = 0) -> tuple[float, str]:
    """Return the largest relative difference of a step from the dense transformer, and its name.

    Dropout is on. The difference of a gradient's element is relative to the largest element of that
    gradient.
    """
    config, generator = plan.model, np.random.default_rng(seed)
    parameters = {
        name: initial_parameter(config, name, seed) + generator.normal(0, 0.1, shape)
        for name, shape in config.parameter_shapes.items()
    }
    tokens, targets = generator.integers(0, config.vocabulary, (2, batch, positions))
    batch_and_draw = tokens, targets, Draw(seed, 0)
    loss, gradients = Transformer(config, parameters).loss_and_gradients(*batch_and_draw)
    step = EmulatedModel(config, plan, parameters).loss_and_gradients(*batch_and_draw)
    differences = {"the loss": abs(step.loss / loss - 1)}
    for name, gradient in gradients.items():
        largest = np.abs(gradient).max() or 1.0
        differences[f"{name}.grad"] = np.abs(step.gradients[name] - gradient).max() / largest
    return max((float(difference), name) for name, difference in differences.items())
