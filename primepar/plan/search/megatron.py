"""Megatron's plans with every degree of data parallelism, as baselines of what a search finds."""

from __future__ import annotations

from collections.abc import Iterator

from primepar.errors import PlanError
from primepar.plan.presets import preset_sequences
from primepar.plan.search.given_plan import Given
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult


def degrees(planner: Planner, preset: str = "megatron") -> Iterator[tuple[str, SearchResult]]:
    """The plans of a preset on 1, 2, 4, ... copies, each with its name, as far as they fit.

    With as many copies as devices the plan is that of data parallelism alone.
    """
    devices = planner.training.links.devices
    for bit in range(planner.training.links.bits + 1):
        name = f"M{1 << bit},{preset}" if bit else preset
        if devices == 1 << bit:
            name = "data"
        try:
            sequences = preset_sequences(name, planner.model, devices)
            given = Given.with_sequences(planner, sequences)
            for operator in planner.operators:
                if operator.kind == "attention":  # heads refuse most degrees, and at once
                    given.options(operator.name)
            yield name, given.result
        except PlanError:
            continue


def fastest_megatron(planner: Planner) -> tuple[str, SearchResult] | None:
    """The fastest of Megatron's plans, with and without sequence parallelism.

    Those within a device's memory come first. None where no degree fits the model and the batch.
    """
    if planner.part != "model":
        return None
    plans = [*degrees(planner), *degrees(planner, "megatron-sp")]
    memory = planner.training.cluster.memory
    return min(plans, key=lambda plan: (plan[1].memory > memory, plan[1].seconds), default=None)
