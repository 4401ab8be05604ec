"""The cost of a given plan, by the same cost model as the plans of a search."""

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
    """A planner in which every operator has one option: the sequence that `sequences` names.

    Sequences are spelt as the search spells them, with adjacent cuts of one dim merged: `M2,K4`.
    """

    sequences: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def with_sequences(cls, planner: Planner, sequences: Mapping[str, str]) -> Self:
        """The plan with these sequences, for the model, cluster, batch and space of a planner."""
        planned = cls(planner.model, planner.training, planner.space, planner.alpha,
                  part=planner.part, sequences=sequences)  # fmt: skip
        planned.catalogue = planner.catalogue
        planned.operators, planned.named = planner.operators, planner.named
        return planned

    @property
    def result(self) -> SearchResult:
        """The plan with its cost. Raises `PlanError` for a sequence that is not in the space."""
        chosen = SearchResult(self, 0.0, dict.fromkeys(self.named, 0))
        return SearchResult(self, self.cost(chosen.choices), chosen.choices)

    def options(self, name: str) -> Options:
        """The one option of an operator."""
        key = self.key(name)
        if key not in self.known:
            all_options, text = self.catalogue.options(self.named[name]), self.sequences[name]
            numbers = [
                numbers
                for numbers, candidate in enumerate(all_options.candidates)
                if candidate.text == text
            ]
            if not numbers:
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.links.devices} devices in "
                    f"the space {self.space} that its sizes allow, got {text}"
                )
            cost = all_options.seconds[numbers] + self.alpha * all_options.kept[numbers]
            self.known[key] = all_options.only([numbers[int(np.argmin(cost))]])
        return self.known[key]

    def key(self, name: str) -> tuple[object, ...]:
        """The key under which operators share their option: also by their sequence."""
        return *super().key(name), self.sequences[name]
