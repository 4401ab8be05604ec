"""What `primepar plan` searches: least time, memory or redundancy, or the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from primepar.errors import ConfigError, PlanError, UndecidedError

if TYPE_CHECKING:
    from primepar.plan.redundancy import Solution
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.ranked import ComparedPlan
    from primepar.plan.search.result import SearchResult

Goal = Literal["time", "memory", "pareto", "redundancy"]
_WITHOUT_EFFECT: dict[Goal, tuple[tuple[str, ...], str]] = {
    "time": (("--within",), "time itself is least"),
    "memory": (("--memory", "--alpha"), "memory itself is least"),
    "pareto": (("--memory", "--within", "--alpha", "--explain"),
               "it lists the whole Pareto front"),
    "redundancy": (("--alpha",), "redundancy itself is least"),
}  # fmt: skip
"""Options without effect on a goal, and why."""
SOLVER_SECONDS = 60.0
"""Time limit of the integer program for the least redundancy."""


@dataclass(frozen=True)
class Outcome:
    """A plan of the front: its name, seconds of a step and bytes of a device."""

    name: str
    seconds: float
    memory: float


@dataclass(frozen=True)
class Listing:
    """Plans along the Pareto front, the fastest first.

    Each plan of the front has one here with at most `1 + tolerance` times its time and memory.
    """

    tolerance: float
    plans: list[Outcome]


@dataclass(frozen=True)
class Objective:
    """The options of `primepar plan` that define which plan is the best.

    `memory` bounds the bytes of a device and `within` the seconds of a step, where they are given.
    """

    memory: float | None
    within: float | None
    goal: Goal

    def whose(self, cluster: str) -> str:
        """Whose bytes bound the memory of a plan."""
        return f"a device of the cluster {cluster}" if self.memory is None else "--memory"

    @staticmethod
    def refuse(given: Mapping[str, bool], with_: str, because: str) -> None:
        """Raise `ConfigError` for an option that has no effect together with another."""
        for option, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{option}: expected none together with {with_}, as {because}: leave it out"
                )

    @staticmethod
    def smallest(planner: Planner, within: float) -> SearchResult:
        """The smallest plan within `within` seconds. Raises `PlanError`."""
        from primepar.plan.search.search import search
        from primepar.plan.search.within import WithinLimits

        result = WithinLimits(planner).smallest(within)
        if result is None:
            shortest = search(planner).seconds
            raise PlanError(
                f"expected a plan with a step within the {within:g} seconds of --within, got none: "
                f"the shortest takes {shortest:.6g} seconds, {shortest - within:.2g} too many"
            )
        return result

    def check(self, alpha: float, others: Mapping[str, bool]) -> None:
        """Raise `ConfigError` for an objective without its bound, or options without effect.

        And for a bound that is no positive number.
        """
        bounds = {"--memory": (self.memory, "bytes"), "--within": (self.within, "seconds")}
        for name, (bound, unit) in bounds.items():
            if bound is not None and not (isfinite(bound) and bound > 0):
                raise ConfigError(f"{name}: expected more than 0 {unit}, got {bound:g}")
        if self.goal == "memory" and self.within is None:
            raise ConfigError(
                "--objective memory: expected the seconds that a step may take, got none: "
                "write --within SECONDS"
            )
        given = {
            "--memory": self.memory is not None,
            "--within": self.within is not None,
            "--alpha": alpha > 0,
            **others,
        }
        without_effect, because = _WITHOUT_EFFECT[self.goal]
        self.refuse({name: given[name] for name in without_effect},
                    f"--objective {self.goal}", because)  # fmt: skip

    def best(self, planner: Planner) -> list[ComparedPlan]:
        """The best plan, and then those that it was compared with.

        Raises `PlanError` where no plan is within the bound.
        """
        from primepar.plan.search.ranked import ComparedPlan, ranked

        if self.within is not None:
            return [ComparedPlan("", self.smallest(planner, self.within))]
        cluster = planner.training.cluster
        bound = cluster.memory if self.memory is None else self.memory
        return ranked(planner, bound, self.whose(cluster.name))

    def least_redundant(self, planner: Planner) -> tuple[SearchResult, Solution]:
        """The plan with the least redundancy within the bounds, and how sure that is.

        Raises `PlanError` where there is none, `UndecidedError` if none was found in time.
        """
        from primepar.plan.redundancy import MOST_COLUMNS, least_redundancy

        memory = self.memory or planner.training.cluster.memory
        made = planner.like(planner, tradeoffs=True)
        result, solution = least_redundancy(made, memory, self.within or inf, SOLVER_SECONDS)
        if result is not None:
            return result, solution
        if solution.columns > MOST_COLUMNS:
            raise UndecidedError(
                f"expected an integer program of at most {MOST_COLUMNS:,} variables, got "
                f"{solution.columns:,}: plan fewer devices or layers, or leave --within out"
            )
        if not solution.proved:
            raise UndecidedError(
                f"expected a plan within {SOLVER_SECONDS:g} seconds, got none yet: plan fewer "
                "devices or layers, or leave --within out"
            )
        if self.within is not None:  # raises where one bound alone leaves no plan
            self.smallest(planner, self.within)
        from primepar.plan.search.within import fastest_within

        fastest = fastest_within(planner, memory, self.whose(planner.training.cluster.name))
        raise PlanError(
            f"expected a plan with a step within the {self.within:g} seconds of --within and "
            f"within the memory of a device, got none: the fastest within the memory takes "
            f"{fastest.seconds:.6g} seconds: give more of one"
        )

    @staticmethod
    def front(planner: Planner, folder: Path | None) -> Listing:
        """Plans along the Pareto front of time and memory, written into a folder if that is given.

        The files are `front-01.json` and so on, the fastest first. Raises `ConfigError` for a
        folder that has some of them, or is none.
        """
        if folder is not None:
            check_folder(folder)
        from primepar.plan.plan_file import save_plan
        from primepar.plan.search.within import WithinLimits

        front = WithinLimits(planner).front()
        named = {f"front-{number:02}": plan for number, plan in enumerate(front.plans, 1)}
        if folder is not None:
            folder.mkdir(exist_ok=True)
            for name, plan in named.items():
                save_plan(plan.plan, folder / f"{name}.json")
        plans = [Outcome(name, plan.seconds, plan.memory) for name, plan in named.items()]
        return Listing(front.tolerance, plans)


def redundancy_words(redundant: float, solution: Solution) -> str:
    """The redundant bytes of a device, and how sure it is that no plan has less."""
    start = f"\n{redundant / 2**20:,.1f} MiB of a device are redundant: "
    if solution.proved:
        return (
            f"{start}no plan of the space within the bounds has less, proved by the integer "
            f"program, {solution.columns:,} variables\n"
        )
    return (
        f"{start}not proved to be the least, stopped after {SOLVER_SECONDS:g} seconds, when none "
        f"had less than {solution.bound / 2**20:,.1f} MiB\n"
    )


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` unless the plans of a front may be written into a folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"--output: expected a folder for the plans of the front, got the file {folder}: name "
            "another"
        )
    if not folder.absolute().parent.is_dir():
        raise ConfigError(
            f"--output: expected a folder inside one that there is, got {folder}: make its parent"
        )
    written = sorted(path.name for path in folder.glob("front-*.json"))
    if written:
        raise ConfigError(
            f"--output: expected a folder without plans of a front, got {folder} with "
            f"{written[0]}: name another"
        )


def front_words(front: Listing) -> str:
    """The listed plans as a table."""
    head = "plan", "ms", "MiB"
    rows = [head, *((plan.name, f"{1e3 * plan.seconds:,.3f}", f"{plan.memory / 2**20:,.3f}")
                    for plan in front.plans)]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([name.ljust(widths[0]), time.rjust(widths[1]), memory.rjust(widths[2])])
             for name, time, memory in rows]  # fmt: skip
    count = len(front.plans)
    near = f"every plan of the Pareto front is within {front.tolerance:.1%} of one of them"
    return "\n".join([*lines, "", f"{count} plans: {near} in time and memory"]) + "\n"
