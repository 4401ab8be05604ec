"""Whole training steps as programs, AdamW and dropout in them, against one device in NumPy.

With HYPOTHESIS_PROFILE=ci every family goes 20 steps under every preset plan, and models do under
100 random plans; else one goes 20 steps, two are clipped, and one plan is random.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import distributed_model_cases as cases
import distributed_step_cases as steps
import msgspec
import numpy as np
import pytest
from distributed_ranks import on_ranks
from lowered_steps import lower_step
from partitioned_cases import fitting
from profiles import IS_LONG
from step_cases import calls_of_step, sent_by
from test_distributed_model import FAMILIES, PLANS

from primepar.errors import PlanError
from primepar.models import ModelConfig, operators
from primepar.models.dropout import Draw
from primepar.plan import Plan, preset_plan
from primepar.reference.oracle.train import AdamW
from primepar.reference.oracle.transformer import Transformer

DROPS: dict[str, Any] = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3}
MODELS = {name: replace(cases.MODELS[name], **DROPS) for name in FAMILIES}
LONG, SHORT = (20, 20) if IS_LONG else (6, 2)
RANDOM = {4: 50, 8: 50} if IS_LONG else {4: 1}
LONGEST = (("gpt2", "primepar"), ("opt", "stationary"))
"""Those that go on for more steps."""
CLIPPED = (("llama", "tesseract"), ("gpt2", "data"))
CLOSE = 1e-9
AT_ONCE = 12

Case = tuple[Plan, int, float | None]


def preset_case(name: str, plan: str, ranks: int) -> Case:
    """A run of a family under a preset plan."""
    long = ranks == 4 and (name, plan) in LONGEST
    clip = steps.CLIP if (name, plan) in CLIPPED else None
    return preset_plan(plan, MODELS[name], ranks, cases.BATCH), LONG if long else SHORT, clip


def drawn(ranks: int) -> list[Case]:
    """Runs under random plans, and of random batches that these divide."""
    chosen, random_cases = random.Random(ranks), list[Case]()
    while len(random_cases) < RANDOM[ranks]:
        model = MODELS[chosen.choice(FAMILIES)]
        one = replace(model, layers=1)
        sequences = {
            operator.name: chosen.choice(fitting(one, ranks, operator.name.replace(".1.", ".0.")))
            for operator in operators(model)
        }
        try:
            plan = Plan(model=model, ranks=ranks, sequences=sequences)
        except PlanError:
            continue
        least = chosen.choice((1, 3, 8))
        batch = plan.row_cuts.smallest_batch(model.context, least)
        if batch <= 16:
            clip = chosen.choice((None, steps.CLIP))
            random_cases.append((msgspec.structs.replace(plan, batch=batch), SHORT, clip))
    return random_cases


def presets(ranks: int) -> list[tuple[str, str]]:
    """Families and preset plans."""
    return list(product(FAMILIES, PLANS[ranks])) if IS_LONG else [LONGEST[0], *CLIPPED]


def case_names(ranks: int) -> list[str]:
    """The names of `asked`; to draw the plans takes seconds, which collecting need not."""
    return [*map("-".join, presets(ranks)), *(f"random{number}" for number in range(RANDOM[ranks]))]


@cache
def asked(ranks: int) -> dict[str, Case]:
    cases_of_presets = [preset_case(name, plan, ranks) for name, plan in presets(ranks)]
    return dict(zip(case_names(ranks), [*cases_of_presets, *drawn(ranks)], strict=True))


@cache
def results(ranks: int) -> dict[str, list[steps.Run]]:
    """Case -> what every rank has of it; a few at a time in one world."""
    every, by_name = list(asked(ranks).items()), dict[str, list[steps.Run]]()
    for first in range(0, len(every), AT_ONCE):
        names, some = zip(*every[first : first + AT_ONCE], strict=True)
        ranked = on_ranks(ranks, steps.runs, ranks, list(some))
        by_name.update(zip(names, map(list, zip(*ranked, strict=True)), strict=True))
    return by_name


@cache
def oracle(
    config: ModelConfig, batch: int, clip: float | None, count: int
) -> tuple[list[float], list[float], cases.Arrays]:
    """Losses, norms and last parameters of a run on one device."""
    model = Transformer(config, cases.parameters(config))
    decayed = {f"{name}.weight" for name in config.linear_shapes}
    optimizer = AdamW(steps.RATE, weight_decay=0.1, decayed=decayed)
    losses, norms = [], []
    for number in range(1, count + 1):
        given = steps.drawn(config, batch, number)
        loss, gradients = model.loss_and_gradients(*given, Draw(cases.SEED, number))
        norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        scale = 1.0 if clip is None else min(1.0, clip / norm)
        scaled = {name: gradient * scale for name, gradient in gradients.items()}
        model.parameters = optimizer.step(model.parameters, scaled)
        losses.append(loss)
        norms.append(norm)
    return losses, norms, dict(model.parameters)


ON = [(ranks, name) for ranks in RANDOM for name in case_names(ranks)]


@pytest.mark.parametrize(("ranks", "name"), ON)
def test_training_goes_as_on_one_device_and_sends_what_is_predicted(ranks: int, name: str) -> None:
    plan, count, clip = asked(ranks)[name]
    assert plan.batch is not None
    losses, norms, parameters = oracle(plan.model, plan.batch, clip, count)
    everyone = results(ranks)[name]
    for run in everyone:
        assert run.losses == pytest.approx(losses, rel=CLOSE, abs=0)
        assert run.norms == pytest.approx(norms, rel=CLOSE, abs=0)
    for parameter, expected in parameters.items():
        got = steps.whole([run.parts[parameter] for run in everyone], expected)
        assert np.abs(got - expected).max() < CLOSE * np.abs(expected).max(), parameter
    program = lower_step(plan, plan.batch, plan.model.context)
    assert [run.sent for run in everyone] == sent_by(calls_of_step(program))


def test_a_clipped_run_is_another_one() -> None:
    plan, count, clip = asked(4)["gpt2-data"]
    assert plan.batch is not None
    assert clip is not None
    clipped, free = (oracle(plan.model, plan.batch, largest, count) for largest in (clip, None))
    assert min(clipped[1]) > clip
    assert clipped[0][-1] != free[0][-1]
