"""What a plan that somebody else made costs, by the same model as the plans of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from primepar.errors import PlanError
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult


@dataclass
class Given(Planner):
    """A planner whose every operator has one option: the sequence that `sequences` names.

    Sequences are spelt as the search spells them, cuts of one dim side by side as one: `M2,K4`.
    """

    sequences: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, planner: Planner, sequences: Mapping[str, str]) -> Self:
        """The plan with these sequences, of the model, cluster, batch and space of a planner."""
        own = cls(planner.model, planner.training, planner.space, planner.alpha,
                  part=planner.part, sequences=sequences)  # fmt: skip
        own.catalogue = planner.catalogue
        own.operators, own.named = planner.operators, planner.named
        return own

    @property
    def found(self) -> SearchResult:
        """The plan with its cost. Raises `PlanError` for a sequence that the space has not."""
        found = SearchResult(self, 0.0, dict.fromkeys(self.named, 0))
        return SearchResult(self, self.cost(found.choices), found.choices)

    def options(self, name: str) -> Options:
        """The one option of an operator."""
        key = self.key(name)
        if key not in self.known:
            every, text = self.catalogue.options(self.named[name]), self.sequences[name]
            at = [at for at, each in enumerate(every.candidates) if each.text == text]
            if not at:
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.wires.devices} devices in "
                    f"the space {self.space} that its sizes allow, got {text}"
                )
            cost = every.seconds[at] + self.alpha * every.kept[at]
            self.known[key] = every.only([at[int(np.argmin(cost))]])
        return self.known[key]

    def key(self, name: str) -> tuple[object, ...]:
        """What operators have in common that share their option: their sequence too."""
        return *super().key(name), self.sequences[name]
