"""Training steps in half precision: what they give on every rank, and what they leave as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepPrograms, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.operators import StepInputs, StepOptions
from primepar.plan import Plan

BATCH, POSITIONS, CLIP = 4, 8, 0.5


@dataclass
class ShortRun:
    """Losses and norms of the steps, and on this rank: what moved in which, out of all elements."""

    losses: list[float]
    norms: list[float]
    changed: list[bool]
    """Whether any block changed in the step."""
    rounded: bool
    """Whether the parameters were their copies, rounded, after every step."""
    moved: tuple[int, int]
    """Elements of parameters and of their copies that are not what they were."""
    elements: int


@dataclass(frozen=True)
class HalfCase:
    """A run of a step for each scale; without masters none has copies."""

    plan: Plan
    dtype: str
    scales: tuple[float | None, ...]
    rate: float = 1e-3
    masters: bool = True

    def run(self) -> ShortRun:
        """Do the steps; a collective call."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        mesh = Mesh(self.plan.mesh, dtype=dtype)
        state = TrainingState(self.plan, mesh, masters=self.masters)
        skips = self.dtype == "float16"
        options = StepOptions(CLIP, masters=self.masters, skips=skips)
        program = StepPrograms(self.plan, mesh, options).program(BATCH, POSITIONS, "update")
        first = {name: block.clone() for name, block in state.blocks.items()}
        run, number = ShortRun([], [], [], True, (0, 0), 0), 1
        for step, scale in enumerate(self.scales):
            before = {name: block.clone() for name, block in state.blocks.items()}
            generator = torch.Generator().manual_seed(step)
            shape, vocabulary = (BATCH, POSITIONS + 1), self.plan.model.vocabulary
            tokens = torch.randint(vocabulary, shape, generator=generator)
            inputs = StepInputs(None, self.rate, number, scale)
            loss, norm = update(program, state, tokens[:, :-1], tokens[:, 1:], inputs)
            number += isfinite(norm)
            run.losses.append(loss)
            run.norms.append(norm)
            run.changed.append(
                any(not torch.equal(before[name], state.blocks[name]) for name in before)
            )
            run.rounded &= all(
                torch.equal(block.to(dtype), state.blocks[name.replace(".master[", "[")])
                for name, block in state.blocks.items()
                if ".master[" in name
            )
        for name, parts in state.places.items():
            for part in parts:
                moved = [
                    int((first[key] != state.blocks[key]).sum())
                    for key in (name + part.index, f"{name}.master{part.index}")
                    if key in first
                ]
                run.moved = run.moved[0] + moved[0], run.moved[1] + moved[-1]
                run.elements += first[name + part.index].numel()
        return run


def runs(cases: Sequence[HalfCase]) -> list[ShortRun]:
    """Several runs in one world."""
    return [case.run() for case in cases]
