"""What the ranks of the tests of whole training steps do: each function runs on every rank."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import distributed_model_cases as cases
import numpy as np
import torch
from numpy.typing import NDArray

from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepOptions
from primepar.plan import Plan

Parts = list[tuple[tuple[slice, ...], NDArray[Any]]]
"""The slices of each part in the full tensor, and the part."""


class Run(NamedTuple):
    """Losses and norms of a few training steps, and the parts of each parameter that a rank has.

    `sent` are the elements of one step.
    """

    losses: list[float]
    norms: list[float]
    parts: dict[str, Parts]
    sent: Fraction


RATE, CLIP = 0.02, 0.5


def drawn(config: ModelConfig, sequences: int, step: int) -> tuple[Any, Any]:
    """Tokens and targets of one step of a run."""
    shape = (sequences, config.context + 1)
    tokens = np.random.default_rng([7, step]).integers(0, config.vocabulary, shape)
    return tokens[:, :-1], tokens[:, 1:]


def trained(plan: Plan, steps: int, clip: float | None, mesh: Mesh) -> Run:
    """Train under a plan, with dropout where the model has it."""
    assert plan.batch is not None
    state = TrainingState(plan, mesh)
    for name, whole in cases.parameters(plan.model).items():
        for part in state.places[name]:
            part.fill(state.block(name, part), whole.__getitem__)
    programs = StepPrograms(plan, mesh, StepOptions(clip=clip))
    run = programs.program(plan.batch, plan.model.context, "update")
    results = []
    for step in range(1, steps + 1):
        tokens, targets = (
            torch.from_numpy(part).to(mesh.device) for part in drawn(plan.model, plan.batch, step)
        )
        inputs = StepInputs(Draw(cases.SEED, step), RATE, step)
        results.append(update(run, state, tokens, targets, inputs))
    losses, norms = (list(values) for values in zip(*results, strict=True))
    sent = sum((elements for _, elements, _ in run.executor.sent), Fraction(0))
    return Run(losses, norms, parts_of(state), sent)


def parts_of(state: TrainingState) -> dict[str, Parts]:
    """What this rank has of every parameter."""
    return {
        name: [(part.whole, state.block(name, part)[part.unpadded].cpu().numpy()) for part in parts]
        for name, parts in state.places.items()
    }


def whole(everyone: list[Parts], like: NDArray[Any]) -> NDArray[Any]:
    """A parameter put together of the parts of all ranks."""
    joined = np.full_like(like, np.nan)
    for parts in everyone:
        for where, block in parts:
            joined[where] = block
    return joined


def runs(ranks: int, asked: list[tuple[Plan, int, float | None]]) -> list[Run]:
    """Several training runs in one world."""
    mesh = cases.mesh_of(ranks)
    return [trained(*case, mesh) for case in asked]
