"""The rate of every step, AdamW's numbers, and what a run refuses of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from primepar.distributed.training.loss_scale import LossScale
from primepar.distributed.training.settings import Settings
from primepar.errors import ConfigError


def rates(steps: int, **settings: Any) -> list[float]:
    """The rate of every step of a run."""
    run = Settings(lr=0.5, steps=steps, **settings)
    return [run.rate(step) for step in range(1, steps + 1)]


def test_the_rate_rises_to_its_full_height() -> None:
    assert rates(5, warmup=4) == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates(1, warmup=0) == [0.5]


def test_a_linear_rate_falls_to_the_least_one() -> None:
    falls = [0.25, 0.5, 0.375, 0.25, 0.125]
    assert rates(5, warmup=2, schedule="linear", lr_min=0.125) == falls
    assert rates(4, warmup=0, schedule="linear", decay_steps=2) == [0.25, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_cosine_rate_is_that_of_torch(warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 - warmup, eta_min=0.125)
    known = []
    for _ in range(10 - warmup):
        optimizer.step()
        cosine.step()
        known += cosine.get_last_lr()
    falling = rates(10, warmup=warmup, schedule="cosine", lr_min=0.125)[warmup:]
    assert falling == pytest.approx(known, rel=1e-12)
    assert falling[-1] == 0.125


WRONG: dict[tuple[tuple[str, Any], ...], str] = {
    (("clip", float("nan")),): "optimizer.clip: expected a positive number, got nan",
    (("schedule", "cosine"), ("lr_min", 0.5)): "optimizer.lr_min: expected at most optimizer.lr "
    "0.001, got 0.5",
    (("lr_min", 0.5),): "optimizer.lr_min: expected none with optimizer.schedule constant, got "
    "0.5: add --set optimizer.schedule=cosine, or linear",
    (("decay_steps", 50),): "optimizer.decay_steps: expected none with optimizer.schedule "
    "constant, got 50: add --set optimizer.schedule=cosine, or linear",
    (("schedule", "linear"), ("decay_steps", 20)): "optimizer.decay_steps: expected more than the "
    "20 steps of optimizer.warmup with optimizer.schedule linear, got 20: take a shorter warm-up",
    (("schedule", "cosine"), ("steps", 10)): "training.steps: expected more than the 20 steps of "
    "optimizer.warmup with optimizer.schedule cosine, got 10: take a shorter warm-up",
    (("loss_scale", 8.0), ("dtype", "bfloat16")): "optimizer.loss_scale: expected none with "
    "training.dtype bfloat16, whose gradients have the range of float32, got 8.0: leave it out, or "
    "take float16",
    (("average_every", 2), ("dtype", "float16")): "averaging.every: expected none with "
    "training.dtype float16, whose replicas would skip different steps, got 2: take bfloat16",
}


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_a_wrong_setting_is_refused(given: tuple[tuple[str, Any], ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings(**dict(given))
    assert str(refused.value) == WRONG[given]


# The scale of the loss


def test_the_scale_is_that_of_torch() -> None:
    """Skipped and good steps, and what torch's GradScaler makes of them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    ours, norms = LossScale(8.0), [1.0, float("inf"), 1.0, 1.0, 1.0, float("nan"), *[1.0] * 7]
    for norm in norms:
        scaler.scale(weight.sum())
        weight.grad = torch.full((1,), norm)
        scaler.step(optimizer)
        scaler.update()
        ours = ours.after(norm, 3)
        assert ours.scale == scaler.get_scale()
    assert ours.skipped == 2


def test_the_scale_ends_at_one() -> None:
    scale = LossScale(1.5).after(float("inf"), 3)
    assert scale == LossScale(1.0, 0, 1)
    assert not scale.can_skip()
