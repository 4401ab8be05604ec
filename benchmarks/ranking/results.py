"""What a run records: every plan with its predicted and measured times, and all scores."""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from benchmarks.executor.machine import MachineLoad
from benchmarks.ranking.measure import StepTimes
from benchmarks.ranking.scores import (
    TauInterval,
    blind_regret,
    constant_error,
    error,
    kendall,
    least,
    regret,
    tau_interval,
)

PLANNED = "the planner's"
MEGATRON = "megatron"
NAMED = (PLANNED, MEGATRON, "M2,megatron")
"""Measured in addition to the drawn plans; they are in no score of the drawn ones."""
LARGEST_REGRET, LEAST_TAU = 0.05, 0.8
"""The targets: at most, and at least."""


class RankedPlan(Struct, frozen=True):
    """One plan: seconds of a step by the cost model and by the simulator, and as measured."""

    name: str
    sequences: dict[str, str]
    predicted: float
    simulated: float
    times: StepTimes

    @property
    def measured(self) -> float:
        """Median seconds of a step."""
        return median(self.times.wall)

    @property
    def cpu(self) -> float:
        """Median CPU seconds of a step, of all ranks."""
        return median(self.times.cpu)


class ModelScores(Struct, frozen=True):
    """Scores of one model: of the drawn plans, and of the planner's own choice among all."""

    tau: TauInterval
    simulated_tau: TauInterval
    cpu_tau: float
    """With the CPU seconds of all ranks in the place of the measured time."""
    repeated_tau: float
    """Of the odd rounds as a prediction of the even ones: what noise leaves of a perfect one."""
    regret: float
    """Of the drawn plan that the cost model prefers, over the fastest drawn one."""
    overall_regret: float
    """Of the plan that the search chooses, over the fastest of all that were measured."""
    repeated_regret: float
    """Of the drawn plan that is fastest in the odd rounds, over the fastest in the even ones."""
    blind_regret: float
    """Of a drawn plan chosen blindly: what a constant prediction gives."""
    error: float
    simulated_error: float
    constant_error: float

    @property
    def is_met(self) -> bool:
        """Whether tau and both regrets meet their targets."""
        worst = max(self.regret, self.overall_regret)
        return worst <= LARGEST_REGRET and self.tau.tau >= LEAST_TAU


class ModelRanking(Struct, frozen=True):
    """The plans of one model: the named ones, and those drawn."""

    model: str
    parameters: int
    tokens: int
    named: list[RankedPlan]
    drawn: list[RankedPlan]

    @property
    def scores(self) -> ModelScores:
        """All scores."""
        predicted, simulated, measured = (
            [getattr(plan, name) for plan in self.drawn]
            for name in ("predicted", "simulated", "measured")
        )
        odd, even = ([median(plan.times.wall[half::2]) for plan in self.drawn] for half in (0, 1))
        everyone = [plan.measured for plan in (*self.named, *self.drawn)]
        return ModelScores(
            tau=tau_interval(predicted, measured),
            simulated_tau=tau_interval(simulated, measured),
            cpu_tau=kendall(predicted, [plan.cpu for plan in self.drawn]),
            repeated_tau=kendall(odd, even),
            regret=regret(least(predicted), measured),
            overall_regret=regret(0, everyone),
            repeated_regret=regret(least(odd), even),
            blind_regret=blind_regret(measured),
            error=error(predicted, measured),
            simulated_error=error(simulated, measured),
            constant_error=constant_error(measured),
        )


class RankingRun(Struct, frozen=True):
    """One run of the benchmark."""

    load: MachineLoad
    cluster: str
    """The machine as a cluster file, measured in the same run unless it was given."""
    profiled: bool
    seed: int
    rounds: int
    models: list[ModelRanking]
