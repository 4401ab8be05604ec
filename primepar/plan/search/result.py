"""The result of a search: one option for every operator, with its plan, time and memory."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from primepar.plan.plan import Plan
from primepar.plan.search.planner import Planner
from primepar.plan.search.sequence_space import allows
from primepar.plan.search.stage_cost import PLAIN, Stage, StageCost
from primepar.plan.simulator.account import MOST_COUNTED, StepAccount, accounting
from primepar.plan.simulator.run import Simulation
from primepar.plan.simulator.step import simulate_equal_layers


@dataclass(frozen=True)
class SearchResult:
    """A choice of one option for every operator, and its cost in seconds.

    `gap` bounds how far the cost may be above the least cost of all plans, as a share of that.
    """

    planner: Planner
    cost: float
    choices: dict[str, int]
    gap: float = 0.0

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
