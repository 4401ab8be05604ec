"""The training step that a question about a plan is about: its batch and its positions."""

from __future__ import annotations

from dataclasses import dataclass

from primepar.operators import lower_step
from primepar.plan import Plan
from primepar.schedule import Program


@dataclass(frozen=True)
class TrainingStep:
    """One training step of a plan."""

    plan: Plan
    batch: int
    positions: int

    @classmethod
    def of(cls, plan: Plan, batch: int | None = None, positions: int | None = None) -> TrainingStep:
        """The step of these sizes: by default of the plan's batch, or of the smallest that fits.

        `batch` counts sequences and `positions` tokens of each, by default the model's context.
        """
        positions = positions or plan.model.context
        return cls(plan, batch or plan.batch or plan.row_cuts.smallest_batch(positions), positions)

    def __str__(self) -> str:
        sequences = f"{self.batch} sequence{'s' * (self.batch != 1)}"
        return f"a step of {sequences} of {self.positions} token{'s' * (self.positions != 1)}"

    @property
    def program(self) -> Program:
        """Its program. Raises `PlanError` for sizes that do not fit."""
        return lower_step(self.plan, self.batch, self.positions)
