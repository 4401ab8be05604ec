"""A plan of a planner: one that is searched, or one that is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
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
from primepar.plan.search.row import PlanRow, Split
from primepar.plan.search.sequence_space import allows
from primepar.plan.search.stage_cost import PLAIN, Stage, StageCost


@dataclass(frozen=True, kw_only=True)
class SearchResult(PlanRow):
    """A choice of one option for every operator, on one stage in one micro-batch.

    `cost` is what the search minimises, by default the seconds.
    """

    planner: Planner
    cost: float
    choices: dict[str, int]

    @classmethod
    def of(
        cls, planner: Planner, choices: Mapping[str, int] | Several[int],
        cost: float = 0.0, gap: float | None = None,
    ) -> SearchResult:  # fmt: skip
        """The result for options of all operators, by name or in their order."""
        training = planner.training
        split = Split(1, 1, training.links.devices)
        by_name = (dict(choices) if isinstance(choices, Mapping)
                   else dict(zip(planner.named, choices, strict=True)))  # fmt: skip
        return cls(
            model=planner.model, cluster=training.cluster, split=split, size=training.batch,
            microbatches=1, options=PLAIN, chunks=(StageCost(Stage.of(planner, by_name)),),
            space=planner.space, gap=gap, planner=planner, cost=cost, choices=by_name,
        )  # fmt: skip

    @property
    def stage(self) -> StageCost:
        """The one stage."""
        return self.chunks[0]

    @property
    def sequences(self) -> dict[str, str]:
        """The sequence of every operator that is planned."""
        return {chosen.name: chosen.candidate.text for chosen in self.stage.stage.chosen}

    @property
    def is_allowed(self) -> bool:
        """Whether it has the axes that the planner is asked for."""
        slices = self.planner.slices
        return all(allows(slices, chosen.operator, chosen.candidate)
                   for chosen in self.stage.stage.chosen)  # fmt: skip


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
        choices = dict.fromkeys(self.named, 0)
        return SearchResult.of(self, choices, self.cost(choices))

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
