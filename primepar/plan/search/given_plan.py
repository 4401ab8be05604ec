"""The cost of a given plan, as one of Megatron's, by the cost model of the search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from primepar.errors import PlanError
from primepar.models.graph import Kind
from primepar.partition.registry import parse_sequence
from primepar.plan.cost.candidate import Candidate, candidate_of
from primepar.plan.operator_layouts import sequence_of
from primepar.plan.presets import preset_sequences
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.result import SearchResult


@dataclass
class Given(Planner):
    """A planner in which every operator has one option: the sequence that `sequences` names."""

    sequences: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def with_sequences(cls, planner: Planner, sequences: Mapping[str, str]) -> Self:
        """The plan with these sequences, for the model, cluster, batch and space of a planner."""
        return cls.like(planner, sequences=sequences, hidden=None)

    @property
    def result(self) -> SearchResult:
        """The plan with its cost. Raises `PlanError` for a sequence that is not in the space."""
        chosen = SearchResult(self, 0.0, dict.fromkeys(self.named, 0))
        return SearchResult(self, self.cost(chosen.choices), chosen.choices)

    def options(self, name: str) -> Options:
        """The one option of an operator. Raises `PlanError` where its sequence does not fit."""
        key = self.key(name)
        if key not in self.known:
            operator, text = self.named[name], self.sequences[name]
            sequence = sequence_of(operator, text)
            if sequence.ranks != self.training.links.devices:
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.links.devices} devices, got "
                    f"{text} on {sequence.ranks}: take --devices {sequence.ranks}"
                )
            options = self.catalogue.priced(operator, [_candidate(operator.kind, text)])
            if not len(options):
                raise PlanError(
                    f"expected a sequence of {name} on {self.training.links.devices} devices that "
                    f"divides its sizes and {self.training.batch} sequences of "
                    f"{self.training.positions} tokens, got {text}: take another --batch"
                )
            self.known[key] = options
        return self.known[key]

    def key(self, name: str) -> tuple[object, ...]:
        """The key under which operators share their option: also by their sequence."""
        return *super().key(name), self.sequences[name]


@lru_cache(maxsize=4096)
def _candidate(kind: Kind, text: str) -> Candidate:
    """The sequence of an operator of a kind, as a candidate; one for equal texts."""
    linear = kind == "linear"
    return candidate_of(parse_sequence(text, linear=linear), *(() if linear else ("O",)))


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
