"""A plan of a planner, with its seconds and bytes: one that is searched, or one that is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil
from typing import Self

from primepar.errors import PlanError
from primepar.models.graph import Kind
from primepar.partition.registry import parse_sequence
from primepar.plan.cost.candidate import Candidate, candidate_of
from primepar.plan.operator_layouts import sequence_of
from primepar.plan.plan import Plan
from primepar.plan.presets import preset_sequences
from primepar.plan.search.options import Options
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import allows
from primepar.plan.search.stage_cost import PLAIN, Stage, StageCost
from primepar.plan.simulator.account import MOST_COUNTED, StepAccount, accounting
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import simulate_equal_layers


@dataclass(frozen=True)
class SearchResult:
    """A choice of one option for every operator, and its cost in seconds.

    `gap` bounds how far the cost may be above the least cost of all plans of the planner, as a
    share of that; None where that is not known, as of a given plan.
    """

    planner: Planner
    cost: float
    choices: dict[str, int]
    gap: float | None = None

    @classmethod
    def of(
        cls, planner: Planner, cost: float, choices: Several[int], gap: float = 0.0
    ) -> SearchResult:
        """The result for the options of all operators in their order."""
        return cls(planner, cost, dict(zip(planner.named, choices, strict=True)), gap)

    @property
    def plan(self) -> Plan:
        """The plan, as it is saved to a file."""
        model, training = self.planner.model, self.planner.training
        return Plan(model=model, ranks=training.links.devices, batch=training.batch,
                    sequences=self.sequences)  # fmt: skip

    @property
    def sequences(self) -> dict[str, str]:
        """The sequence of every operator."""
        options = self.planner.options
        return {
            name: options(name).candidates[number].text for name, number in self.choices.items()
        }

    @cached_property
    def stage(self) -> StageCost:
        """The plan as the one stage of a step without micro-batches."""
        return StageCost(Stage.of(self.planner, self.choices))

    @property
    def seconds(self) -> float:
        """Seconds of a training step: of all operators and of the redistributions between them.

        All are added, unless training posts its transfers.
        """
        return sum(self.stage.seconds(PLAIN))

    @property
    def is_allowed(self) -> bool:
        """Whether it has the axes that the planner is asked for."""
        slices = self.planner.slices
        return all(allows(slices, chosen.operator, chosen.candidate)
                   for chosen in self.stage.stage.chosen)  # fmt: skip

    @cached_property
    def account(self) -> StepAccount | None:
        """What is counted in the step's program.

        None on more than `MOST_COUNTED` devices, and for a model that is only priced.
        """
        training = self.planner.training
        if "simulation" in self.__dict__:
            run = self.simulation
            return StepAccount(tuple(map(ceil, run.sent)), tuple(run.peak))
        if not self.can_be_lowered:
            return None
        return accounting(self.plan, training.batch, training.positions, training.dtype)

    @property
    def can_be_simulated(self) -> bool:
        """Whether the plan is one of a whole model that is counted."""
        return self.planner.part == "model" and self.can_be_lowered

    @property
    def can_be_lowered(self) -> bool:
        """Whether the step's program is lowered, on at most `MOST_COUNTED` devices."""
        priced = self.planner.model.priced
        few = self.planner.training.links.devices <= MOST_COUNTED
        return few and not (priced and priced.what)

    @cached_property
    def simulation(self) -> Simulation:
        """A simulated step."""
        training = self.planner.training
        return simulate_equal_layers(
            self.plan, training.batch, training.positions, training.cluster, training.dtype
        )

    @property
    def held(self) -> tuple[int, ...]:
        """Peak bytes of every device, as simulated and emulated devices count them.

        Where they are not counted, the bound that the search adds up.
        """
        if self.account is None:
            return (ceil(self.memory),) * self.planner.training.links.devices
        return self.account.held

    def is_within(self, bound: float) -> bool:
        """Whether a device holds at most `bound` bytes, as the search adds them up or counted."""
        if self.memory <= bound or not self.can_be_lowered:
            return self.memory <= bound
        training = self.planner.training
        step = self.plan, training.batch, training.positions, training.dtype
        return max(accounting(*step, bound).held) <= bound

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that every device sends in a training step; none where they are not counted."""
        return () if self.account is None else self.account.sent

    @property
    def memory(self) -> float:
        """Bytes of a device: the sum that operators keep, plus the largest transient part."""
        return sum(self.stage.bytes(PLAIN))


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
