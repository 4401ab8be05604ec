"""The plan that a target names where its price is asked for: a plan, or a preset of a model."""

from __future__ import annotations

from pathlib import Path

from primepar.api.asked_target import AnyTarget, AskedTarget
from primepar.api.placement import PYTHON, Spelling, refused
from primepar.errors import TargetError
from primepar.models.config import ModelConfig
from primepar.models.sizes import find_model
from primepar.plan.plan import Plan
from primepar.plan.presets import names_preset, preset_plan

SEQUENCES = 8
"""Sequences of a step where neither the plan nor the caller states them."""


def priced_plan(
    target: AnyTarget,
    model: str | Path | ModelConfig | None,
    devices: int | None,
    spelling: Spelling = PYTHON,
) -> Plan:
    """The plan that a target names; a preset needs a `model` and `devices`.

    Raises `TargetError`, and what reading a file or making a preset raises.
    """
    text = str(target) if isinstance(target, str | Path) else ""
    if text and not text.endswith(".json") and (names_preset(text) or model or devices):
        return _preset(text, model, devices, spelling)
    asked = AskedTarget.of(target)
    if not isinstance(asked.target, Plan):
        raise TargetError(
            f"{asked.name}: expected a plan, which has a price, got a "
            f"{type(asked.target).__name__.lower()}: write plan.json, or a preset as megatron"
        )
    reason = "as a plan names its own"
    for option, value in {"model": model, "devices": devices}.items():
        if value is not None:
            raise refused(asked.name, reason, option, value, spelling)
    return asked.target


def _preset(
    name: str, model: str | Path | ModelConfig | None, devices: int | None, spelling: Spelling
) -> Plan:
    if model is None or devices is None:
        option, example = ("model", "opt-6.7b") if model is None else ("devices", 8)
        raise TargetError(
            f"{name}: expected the model and the devices of a preset, got no "
            f"{spelling.name(option)}: write {spelling.given(option, example)}"
        )
    sizes = find_model(str(model)) if isinstance(model, str | Path) else model
    return preset_plan(name, sizes, devices)
