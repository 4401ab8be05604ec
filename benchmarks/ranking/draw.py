"""Plans drawn at random, by a rule that looks at no time.

A drawn plan starts as a preset on all devices, or as two copies of one, each as likely as any
other. Then a share is drawn out of `SHARES`. Every operator of every layer is changed with this
probability: it takes one of its sequences in the space `all`, each as likely. So does an operator
whose sequence in the preset is not in the space. The plans reach from presets as they are to those
in which no operator knows of its neighbours. A plan that is there already, or that its batch does
not allow, is drawn again. No plan is left out for its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from msgspec import Struct

from primepar.errors import PlanError
from primepar.models import ModelConfig
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.plan.search.planner import Planner

RANKS: Final = 4
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Probabilities with which an operator is changed; one of them is drawn for each plan."""


class RankedModel(Struct, frozen=True):
    """A model whose plans are ranked, and the number of sequences of its steps."""

    name: str
    config: ModelConfig
    batch: int


MODELS: Final = (
    RankedModel("GPT", ModelConfig.of(
        "gpt", layers=2, hidden=384, heads=8, context=64, vocabulary=256), 4),
    RankedModel("Llama", ModelConfig.of(
        "llama", layers=2, hidden=256, heads=8, kv_heads=4, ffn=704, context=128, vocabulary=256),
        8),
    RankedModel("BLOOM", ModelConfig.of(
        "bloom", layers=2, hidden=128, heads=4, context=128, vocabulary=256), 16),
)  # fmt: skip
"""One whose weights are most of what moves, one in between, one whose activations are."""


class DrawnPlan(Struct, frozen=True):
    """A plan, and how it was made: `megatron`, or `summa, 25% changed`."""

    name: str
    plan: Plan


def drawn(model: RankedModel, planner: Planner, count: int, seed: int) -> list[DrawnPlan]:
    """`count` different plans of a model; the same ones for the same seed and space."""
    random, plans = Random(f"{seed}/{model.name}"), dict[tuple[str, ...], DrawnPlan]()
    bases = dict(base_plans(model))
    while len(plans) < count:
        name, share = random.choice(list(bases)), random.choice(SHARES)
        sequences = _changed(random, planner, bases[name].sequences, share)
        try:
            plan = plan_of(model, sequences)
            plan.check_batch(model.batch, model.config.context)
        except PlanError:
            continue
        label = f"{name}, {share:.0%} changed" if share else name
        plans.setdefault(tuple(sequences.values()), DrawnPlan(label, plan))
    return list(plans.values())


def base_plans(model: RankedModel) -> Iterator[tuple[str, Plan]]:
    """Presets of a model on all devices, alone and as two copies."""
    for name in (*PRESETS, *(f"M2,{method}" for method in PRESETS if method != "data")):
        try:
            yield name, preset_plan(name, model.config, RANKS, model.batch)
        except PlanError:
            continue


def plan_of(model: RankedModel, sequences: Mapping[str, str]) -> Plan:
    """The plan of a model with these sequences. Raises `PlanError` where they do not fit it."""
    return Plan(model=model.config, ranks=RANKS, batch=model.batch, sequences=dict(sequences))


def _changed(
    random: Random, planner: Planner, sequences: Mapping[str, str], share: float
) -> dict[str, str]:
    """The sequences, with each replaced by one of the space with the probability `share`."""
    changed = {}
    for operator in planner.operators:
        options = [option.text for option in planner.catalogue.options(operator).candidates]
        text = sequences[operator.name]
        is_changed = random.random() < share or text not in options
        changed[operator.name] = random.choice(options) if is_changed else text
    return changed
