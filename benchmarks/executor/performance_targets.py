"""Targets of the executor, and whether a run meets them.

A ratio to DTensor has to be at most the limit, by the upper end of its 95% interval. Where any plan
may meet a target, the one with the lowest upper end counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from benchmarks.executor.results import BenchmarkRun, ProblemResult
from benchmarks.executor.score import Score

ScoreOf = Callable[[ProblemResult, str], Score]
METRICS: dict[str, ScoreOf] = {
    "CPU above the floor": ProblemResult.cpu,
    "CPU of a step": ProblemResult.cpu_of_step,
    "wall": ProblemResult.wall,
    "new memory": ProblemResult.memory,
}
BEST = "best plan"


class PerformanceTarget(Struct, frozen=True):
    """A limit for a plan, or for the best one, on the problems whose name begins with `problem`."""

    problem: str
    metric: str
    plan: str
    limit: float


class TargetResult(Struct, frozen=True):
    """A target on one problem: the plan that was taken, and its score."""

    problem: str
    metric: str
    wanted: str
    limit: float
    plan: str
    score: Score

    @property
    def met(self) -> bool:
        """Whether the upper end of the interval is within the limit."""
        return self.score.high <= self.limit


ABOVE, STEP, WALL, MEMORY = METRICS
LARGE, WIDE, SMALL = ("mlp:M=4096,h=512 on 16", "mlp:M=8192,h=512 on 4", "mlp:M=64,h=64 on 4")
GPT = "gpt:M=1024,h=192,layers=4 on 4"
TARGETS = (
    PerformanceTarget(LARGE, ABOVE, BEST, 0.45),
    PerformanceTarget(WIDE, ABOVE, BEST, 0.60),
    PerformanceTarget(WIDE, ABOVE, "primepar", 1.0),
    PerformanceTarget(SMALL, ABOVE, "stationary", 0.45),
    PerformanceTarget(SMALL, ABOVE, "megatron", 0.45),
    PerformanceTarget(SMALL, ABOVE, "primepar", 0.8),
    PerformanceTarget(GPT, STEP, BEST, 0.6),
    PerformanceTarget(GPT, STEP, "primepar", 0.8),
    PerformanceTarget("", WALL, BEST, 1.0),
    PerformanceTarget("", MEMORY, BEST, 0.7),
    PerformanceTarget("", MEMORY, "primepar", 1.0),
)


def judged(run: BenchmarkRun) -> Iterator[TargetResult]:
    """The targets of the problems that a run measured."""
    for target in TARGETS:
        for result in run.problems:
            names = result.plans if target.plan == BEST else [target.plan]
            names = [name for name in names if name in result.plans]
            if names and result.problem.startswith(target.problem):
                yield _judged(target, result, names)


def _judged(target: PerformanceTarget, result: ProblemResult, names: list[str]) -> TargetResult:
    scores = {name: METRICS[target.metric](result, name) for name in names}
    plan = min(scores, key=lambda name: scores[name].high)
    return TargetResult(
        result.problem, target.metric, target.plan, target.limit, plan, scores[plan]
    )
