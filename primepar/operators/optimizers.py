"""The optimizers that a step may end with, and what each keeps of a parameter between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Optimizer = Literal["adamw", "sgd"]

MOMENTS: Mapping[Optimizer, Mapping[str, str]] = {
    "adamw": {"m": "first.update", "v": "second.update"},
    "sgd": {},
}
"""Optimizer -> suffix of each moment of a parameter, `<name>.m` -> the kernel that updates it."""
