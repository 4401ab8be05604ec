"""Small models and plans that the tests of plans share."""

from __future__ import annotations

from primepar.models.config import ModelConfig
from primepar.plan import READY, Plan, ready_plan

GPT2 = ModelConfig.of(
    "gpt2", layers=2, hidden=48, heads=12, context=8, vocabulary=97
)  # fmt: skip
LLAMA = ModelConfig.of(
    "llama", layers=1, hidden=24, heads=6, kv_heads=3, context=4, vocabulary=11
)  # fmt: skip
BLOOM = ModelConfig.of(
    "bloom", layers=1, hidden=16, heads=8, context=4, vocabulary=13
)  # fmt: skip
WIDE = ModelConfig.of("gpt2", layers=1, hidden=72, heads=72, context=4, vocabulary=50)

MESHES = {
    "megatron": (1, 2, 3, 4, 8),
    "megatron-sp": (1, 2, 3, 4, 8),
    "summa": (1, 4, 9, 16),
    "tesseract": (1, 4, 8, 12, 18, 27),
    "3d": (1, 8, 27),
    "primepar": (1, 4, 9, 16),
    "stationary": (1, 4, 9, 16),
    "data": (1, 2, 3, 8),
}
"""Devices on which every ready plan is tried; the numbers divide the sizes of `WIDE`."""

NAMED = [(name, ranks) for name, meshes in MESHES.items() for ranks in meshes]
COPIED = [(f"M2,{name}", 2 * meshes[1]) for name, meshes in MESHES.items()]
assert MESHES.keys() == READY.keys()


def changed(plan: Plan, **sequences: str) -> dict[str, str]:
    """Sequences of a plan with some of the first layer's replaced: `qkv="K4"`, `head="K4"`."""
    names = {name: name if name in plan.sequences else f"blocks.0.{name}" for name in sequences}
    return plan.sequences | {names[name]: text for name, text in sequences.items()}


def small(name: str = "megatron", ranks: int = 4, model: ModelConfig = WIDE) -> Plan:
    """A ready plan for a small model."""
    return ready_plan(name, model, ranks)
