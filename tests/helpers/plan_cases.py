"""Small models and plans that the tests of plans share."""

from __future__ import annotations

from primepar.models.config import ModelConfig
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.schedule import Layout

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
    "stationary-both-ways": (1, 4, 9),
    "data": (1, 2, 3, 8),
}
"""Devices on which every preset plan is tried; the numbers divide the sizes of `WIDE`."""

NAMED = [(name, ranks) for name, meshes in MESHES.items() for ranks in meshes]
COPIED = [(f"M2,{name}", 2 * meshes[1]) for name, meshes in MESHES.items()]
assert MESHES.keys() == PRESETS.keys()


def changed(plan: Plan, **sequences: str) -> dict[str, str]:
    """Sequences of a plan with some of the first layer's replaced: `qkv="K4"`, `head="K4"`."""
    names = {name: name if name in plan.sequences else f"blocks.0.{name}" for name in sequences}
    return plan.sequences | {names[name]: text for name, text in sequences.items()}


def small(name: str = "megatron", ranks: int = 4, model: ModelConfig = WIDE) -> Plan:
    """A preset plan for a small model."""
    return preset_plan(name, model, ranks)


MIXED = ("M2,K2,R2", "R2,M2,K2", "K4,M2", "S2x2,R2", "M2,P2x2", "T2x2x2", "C2x2x2", "R2,Is2x2")
SCATTERED = ("Ns8", "Ns4,M2", "Ns2,M2,N2", "Ns2,K2,M2", "N2,Ns4", "Ns2,S2x2", "R2,Ns4", "Ns4,R2")
LOOKUPS = (*MIXED, "N2,M2,K2", "M2,N2,R2", "S2x2,N2", "R2,K2,Ns2", "M4,Ns2", "N2,M4")
"""Sequences of an embedding: without a cut of the vocabulary, scattered, and looked up."""


def held(layout: Layout) -> list[tuple[int, ...]]:
    """The one block of every device."""
    return [index for (index,) in layout.held]


def only(plan: Plan, **sequences: str) -> Plan:
    """The plan with other sequences for some operators."""
    return Plan(model=plan.model, ranks=plan.ranks, sequences=changed(plan, **sequences))
