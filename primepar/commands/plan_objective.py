"""What `primepar plan` looks for: least time within memory, least memory within time, or all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING, Literal

from primepar.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.result import SearchResult

Goal = Literal["time", "memory", "redundancy"]


@dataclass(frozen=True)
class Outcome:
    """A plan of the front: seconds of a step and bytes of a device."""

    seconds: float
    memory: float


@dataclass(frozen=True)
class Objective:
    """The options that say which plan is the best."""

    goal: Goal
    memory: float | None
    within: float | None
    pareto: bool

    def check(self, alpha: float, others: Mapping[str, bool]) -> None:
        """Raise `ConfigError` for an objective without its bound, or options that say nothing."""
        bounds = {"--memory": (self.memory, "bytes"), "--within": (self.within, "seconds")}
        for name, (bound, unit) in bounds.items():
            if bound is not None and not (isfinite(bound) and bound > 0):
                raise ConfigError(f"{name}: expected more than 0 {unit}, got {bound:g}")
        if self.goal == "memory" and self.within is None and not self.pareto:
            raise ConfigError(
                "--objective memory: expected the seconds that a step may take, got none: "
                "write --within SECONDS"
            )
        if self.pareto:
            given = {f"--objective {self.goal}": self.goal != "time",
                     "--memory": self.memory is not None, "--within": self.within is not None,
                     "--alpha": alpha > 0} | dict(others)  # fmt: skip
            self.refuse(given, "--pareto", "it lists all plans that none beats")
        elif self.goal == "memory":
            given = {"--memory": self.memory is not None, "--alpha": alpha > 0}
            self.refuse(given, "--objective memory", "memory itself is least")
        elif self.goal == "redundancy":
            self.refuse({"--alpha": alpha > 0}, "--objective redundancy",
                         "redundant bytes alone are least")  # fmt: skip
        else:
            self.refuse({"--within": self.within is not None}, "--objective time",
                         "time itself is least")  # fmt: skip

    @staticmethod
    def refuse(given: Mapping[str, bool], beside: str, because: str) -> None:
        """Raise `ConfigError` for an option that says nothing beside another."""
        for option, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{option}: expected none beside {beside}, as {because}: leave it out"
                )

    def best(self, planner: Callable[[bool], Planner]) -> SearchResult:
        """The best plan; `planner` makes one that keeps what costs more and takes less memory.

        Raises `PlanError` where no plan is within the bound.
        """
        if self.within is not None:
            return self.smallest(planner, self.within)
        from primepar.plan.search.search import EXACT, search

        found = search(planner(False))
        cluster = found.planner.training.cluster
        bound = cluster.memory if self.memory is None else self.memory
        if found.memory <= bound or max(found.held) <= bound:
            return found
        if found.planner.training.wires.devices > EXACT:
            raise PlanError(
                f"expected a plan within {bound:,.0f} bytes of a device, got one of "
                f"{ceil(found.memory):,} bytes: on so many devices only the fastest is searched: "
                "take more --devices, a smaller --batch, or --alpha for less memory"
            )
        return self.fastest(planner(True), bound, held=True)

    def fastest(self, planner: Planner, bound: float, held: bool = False) -> SearchResult:
        """The fastest plan within so many bytes, as the search adds them up.

        Where there is none, the smallest, if `held` is asked for and a device holds no more at
        once. Raises `PlanError`.
        """
        from primepar.plan.search.tradeoff import Tradeoff

        tradeoff = Tradeoff(planner)
        least = tradeoff.least_memory()
        found = tradeoff.fastest(max(bound, least))
        assert found is not None, "the smallest plan is within the bound"
        taken = max(found.held) if held and least > bound else ceil(least)
        if taken > bound:
            whose = f"a device of the cluster {planner.training.cluster.name}"
            raise PlanError(
                f"expected a plan within the {bound:,.0f} bytes of "
                f"{whose if self.memory is None else '--memory'}, got none: the smallest takes "
                f"{taken:,} bytes, {taken - bound:,.0f} too many: take more --devices or a "
                "smaller --batch"
            )
        return found

    @staticmethod
    def smallest(planner: Callable[[bool], Planner], within: float) -> SearchResult:
        """The smallest plan within so many seconds. Raises `PlanError`."""
        from primepar.plan.search.search import search
        from primepar.plan.search.tradeoff import Tradeoff

        found = Tradeoff(planner(True)).smallest(within)
        if found is None:
            shortest = search(planner(False)).seconds
            raise PlanError(
                f"expected a plan with a step within the {within:g} seconds of --within, got none: "
                f"the shortest takes {shortest:.6g} seconds, {shortest - within:.2g} too many"
            )
        return found

    @staticmethod
    def front(planner: Planner) -> list[Outcome]:
        """Plans that none beats in time and memory, the fastest first."""
        from primepar.plan.search.tradeoff import Tradeoff

        return [Outcome(each.seconds, each.memory) for each in Tradeoff(planner).front()]


def front_words(front: list[Outcome]) -> str:
    """The front as a table."""
    rows = [(f"{1e3 * each.seconds:,.3f}", f"{each.memory / 2**20:,.3f}") for each in front]
    widths = [max(map(len, column)) for column in zip(("ms", "MiB"), *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
             for row in [("ms", "MiB"), *rows]]  # fmt: skip
    return "\n".join([*lines, "", f"{len(front)} plans that none beats in time and memory"]) + "\n"
