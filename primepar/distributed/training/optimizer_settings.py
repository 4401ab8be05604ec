"""The settings of the optimizer: its numbers, the schedule of its rate, and precision."""

from __future__ import annotations

from math import cos, inf, pi
from typing import Annotated, Literal

from msgspec import Struct

from primepar.distributed.training.setting_description import described
from primepar.errors import ConfigError
from primepar.operators.optimizers import AdamWConstants

OptimizerChoice = Literal["adamw", "sgd"]
Schedule = Literal["constant", "linear", "cosine"]
HALF = ("bfloat16", "float16")
"""Types of weights that have copies in float32."""
LOSS_SCALE = 2.0**16
"""The first scale of the loss in float16, as of torch.amp.GradScaler."""


class OptimizerSettings(Struct, frozen=True, kw_only=True):
    """The section `optimizer`; its checks need the steps and the type of the run."""

    optimizer: Annotated[
        OptimizerChoice, described("optimizer.name", "AdamW, or plain SGD without moments")
    ] = "adamw"
    lr: Annotated[float, described("optimizer.lr", "learning rate after the warm-up")] = 1e-3
    warmup: Annotated[int, described("optimizer.warmup", "steps of the warm-up")] = 20
    schedule: Annotated[
        Schedule, described("optimizer.schedule", "rate after the warm-up: constant, or falling")
    ] = "constant"
    lr_min: Annotated[
        float, described("optimizer.lr_min", "rate at the end of a falling schedule")
    ] = 0.0
    decay_steps: Annotated[
        int | None,
        described("optimizer.decay_steps", "step at which it reaches optimizer.lr_min",
                  "training.steps"),
    ] = None  # fmt: skip
    beta1: Annotated[
        float, described("optimizer.beta1", "AdamW: weight of the old first moment")
    ] = 0.9
    beta2: Annotated[
        float, described("optimizer.beta2", "AdamW: weight of the old second moment")
    ] = 0.95
    epsilon: Annotated[
        float, described("optimizer.epsilon", "AdamW: added to the root of the second moment")
    ] = 1e-8
    weight_decay: Annotated[
        float, described("optimizer.weight_decay", "AdamW: decay of the weights of linear layers")
    ] = 0.1
    clip: Annotated[
        float | None,
        described("optimizer.clip", "scale gradients of a larger norm down to this one",
                  "any norm"),
    ] = None  # fmt: skip
    sharded: Annotated[
        bool,
        described("optimizer.sharded",
                  "replicas of a block share its moments and update (ZeRO-1)"),
    ] = False  # fmt: skip
    masters: Annotated[
        bool,
        described("optimizer.masters",
                  "in half precision, update copies of the parameters in float32"),
    ] = True  # fmt: skip
    loss_scale: Annotated[
        float | None,
        described("optimizer.loss_scale", "first scale of the loss in float16",
                  f"{LOSS_SCALE:.0f} in float16"),
    ] = None  # fmt: skip
    loss_scale_every: Annotated[
        int,
        described("optimizer.loss_scale_every", "good steps after which the scale is doubled"),
    ] = 2000

    @property
    def adamw(self) -> AdamWConstants:
        """The constants of AdamW."""
        return AdamWConstants(self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step of a run of `steps`; the first step is 1.

        It grows linearly over `warmup` steps. Then it is constant, or falls to `lr_min` at
        `decay_steps`, and stays there.
        """
        if step < self.warmup or self.schedule == "constant":
            return self.lr * min(1.0, step / max(1, self.warmup))
        last = steps if self.decay_steps is None else self.decay_steps
        passed = min(1.0, (step - self.warmup) / max(1, last - self.warmup))
        left = 1 - passed if self.schedule == "linear" else (1 + cos(pi * passed)) / 2
        return self.lr_min + (self.lr - self.lr_min) * left

    def check_optimizer(self, steps: int, dtype: str) -> None:
        """Raise `ConfigError` for a setting out of range, or two that do not fit."""
        for name in ("lr", "clip", "epsilon", "loss_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ConfigError(f"optimizer.{name}: expected a positive number, got {value}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"optimizer.{name}: expected 0 or more and less than 1, got "
                    f"{getattr(self, name)}"
                )
        for name in ("warmup", "weight_decay", "lr_min"):
            if not 0 <= getattr(self, name) < inf:
                raise ConfigError(
                    f"optimizer.{name}: expected 0 or more, got {getattr(self, name)}"
                )
        if self.loss_scale_every < 1:
            raise ConfigError(
                f"optimizer.loss_scale_every: expected 1 or more, got {self.loss_scale_every}"
            )
        if self.loss_scale is not None and dtype != "float16":
            raise ConfigError(
                f"optimizer.loss_scale: expected none with training.dtype {dtype}, whose gradients "
                f"have the range of float32, got {self.loss_scale}: leave it out, or take float16"
            )
        self._check_schedule(steps)

    def _check_schedule(self, steps: int) -> None:
        if self.schedule == "constant":
            for name, default in (("lr_min", 0.0), ("decay_steps", None)):
                if getattr(self, name) != default:
                    raise ConfigError(
                        f"optimizer.{name}: expected none with optimizer.schedule constant, got "
                        f"{getattr(self, name)}: add --set optimizer.schedule=cosine, or linear"
                    )
            return
        if self.lr_min > self.lr:
            raise ConfigError(
                f"optimizer.lr_min: expected at most optimizer.lr {self.lr}, got {self.lr_min}"
            )
        last = steps if self.decay_steps is None else self.decay_steps
        if last <= self.warmup:
            name = "training.steps" if self.decay_steps is None else "optimizer.decay_steps"
            raise ConfigError(
                f"{name}: expected more than the {self.warmup} steps of optimizer.warmup with "
                f"optimizer.schedule {self.schedule}, got {last}: take a shorter warm-up"
            )
