"""What a search chose: one option for every operator, with its plan, time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from primepar.plan.memory.peak import peak_bytes
from primepar.plan.plan import Plan
from primepar.plan.search.planner import Planner


@dataclass(frozen=True)
class SearchResult:
    """A choice of one option for every operator, and its cost.

    `gap` is by how much that may be above the least cost of all plans, as a share.
    """

    planner: Planner
    cost: float
    choices: dict[str, int]
    gap: float = 0.0

    @property
    def plan(self) -> Plan:
        """The plan, as a file holds it."""
        model, training = self.planner.model, self.planner.training
        return Plan(model=model, ranks=training.wires.devices, batch=training.batch,
                    sequences=self.sequences)  # fmt: skip

    @property
    def sequences(self) -> dict[str, str]:
        """The sequence of every operator."""
        options = self.planner.options
        return {name: options(name).candidates[at].text for name, at in self.choices.items()}

    @property
    def seconds(self) -> float:
        """Time of a training step: of all operators, and of what moves between them."""
        planner, choices = self.planner, self.choices
        own = sum(float(planner.options(name).seconds[at]) for name, at in choices.items())
        return own + sum(planner.between(name, choices) for name in choices)

    @property
    def held(self) -> tuple[int, ...]:
        """The most bytes on every device at once, as emulated devices count them."""
        training = self.planner.training
        return peak_bytes(self.plan, training.batch, training.positions, training.dtype)

    @property
    def memory(self) -> float:
        """Bytes of a device: what all operators keep, and the most that runs besides."""
        own = [(self.planner.options(name), at) for name, at in self.choices.items()]
        kept = sum(float(options.kept[at]) for options, at in own)
        return kept + max(float(options.running[at]) for options, at in own)
