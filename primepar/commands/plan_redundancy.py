"""`primepar plan --objective redundancy`: the least redundant memory, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from primepar.commands.plan_objective import Objective
from primepar.errors import ConfigError, PlanError, UndecidedError

if TYPE_CHECKING:
    from primepar.plan.redundancy.compare import Account
    from primepar.plan.redundancy.least_redundancy import Least
    from primepar.plan.search.explain import Explanation
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.result import SearchResult

Solver = Literal["ilp", "dp"]
TIMEOUT = 60.0
"""Seconds that the integer program may take where nothing else is said."""


@dataclass(frozen=True)
class Comparison:
    """The least redundancy: how it was found, and that of other plans beside it.

    No plan has less than `bound` bytes; `gap` is what may be saved at most, as a share.
    """

    solver: Solver
    proved: bool
    bound: float
    gap: float
    variables: int
    plans: list[Account]


@dataclass(frozen=True)
class Solving:
    """The options that say how the least redundancy is found."""

    objective: Objective
    solver: Solver | None
    timeout: float | None

    def check(self) -> None:
        """Raise `ConfigError` for options that say nothing, or a limit that is none."""
        given = {"--solver": self.solver is not None, "--timeout": self.timeout is not None}
        if self.objective.goal != "redundancy":
            beside = f"--objective {self.objective.goal}"
            self.objective.refuse(given, beside, "it has one search of its own")
        if self.solver == "dp":
            bounds = {"--within": self.objective.within is not None,
                      "--memory": self.objective.memory is not None}  # fmt: skip
            why = "only the integer program keeps to bounds, or to a time"
            self.objective.refuse(bounds | {"--timeout": given["--timeout"]}, "--solver dp", why)
        if self.timeout is not None and not (isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError(f"--timeout: expected more than 0 seconds, got {self.timeout:g}")

    def best(self, planner: Callable[[bool], Planner]) -> tuple[SearchResult, Comparison | None]:
        """The best plan within the bounds; of the least redundancy, others beside it.

        `planner` makes one that keeps what costs more and takes less memory. Raises `PlanError`
        where no plan is within the bounds, `UndecidedError` if none was found in time.
        """
        if self.objective.goal != "redundancy":
            return self.objective.best(planner), None
        made = planner(True)
        least = self._by_search(made) if self.solver == "dp" else self._by_program(made)
        if least.found is None:
            raise self._none(planner, least)
        return least.found, self._comparison(least, least.found, planner)

    def _by_search(self, planner: Planner) -> Least:
        from primepar.plan.redundancy.least_redundancy import least_by_search

        least, cluster = least_by_search(planner), planner.training.cluster
        if least.found is not None and least.found.memory > cluster.memory:
            raise PlanError(
                f"expected a plan within the {cluster.memory:,.0f} bytes of a device of the "
                f"cluster {cluster.name}, got one that takes {least.found.memory:,.0f}: leave "
                "--solver dp out, as only the integer program keeps to bounds"
            )
        return least

    def _by_program(self, planner: Planner) -> Least:
        """First without the bound on memory that a device is: mostly the plan is within it."""
        from primepar.plan.redundancy.least_redundancy import Within, least

        asked, device = self.objective, planner.training.cluster.memory
        timeout = self.timeout or TIMEOUT
        within = Within(asked.within or inf, asked.memory or inf)
        found = least(planner, within, timeout)
        if asked.memory is None and found.found is not None and found.found.memory > device:
            return least(planner, replace(within, memory=device), timeout)
        return found

    def _none(self, planner: Callable[[bool], Planner], least: Least) -> PlanError | UndecidedError:
        """Why there is no plan. Raises `PlanError` itself where one bound alone leaves none."""
        from primepar.plan.redundancy.integer_program import MOST_COLUMNS

        asked = self.objective
        if least.columns > MOST_COLUMNS:
            return UndecidedError(
                f"expected an integer program of at most {MOST_COLUMNS:,} variables, got "
                f"{least.columns:,}: plan fewer devices or layers, or leave the bounds out and "
                "write --solver dp"
            )
        if not least.proved:
            return UndecidedError(
                f"expected a plan within the {self.timeout or TIMEOUT:g} seconds of --timeout, got "
                "none yet: give it more, or write --solver dp"
            )
        if asked.within is not None:
            asked.smallest(planner, asked.within)
        made = planner(True)
        fastest = asked.fastest(made, asked.memory or made.training.cluster.memory)
        return PlanError(
            f"expected a plan with a step within the {asked.within:g} seconds of --within and "
            f"within the memory of a device, got none: the fastest within the memory takes "
            f"{fastest.seconds:.6g} seconds: give more of one"
        )

    def _comparison(
        self, least: Least, found: SearchResult, planner: Callable[[bool], Planner]
    ) -> Comparison:
        """The plan that was found beside the fastest one and Megatron's."""
        from primepar.plan.redundancy.compare import Account, megatron
        from primepar.plan.search.search import search

        beside = megatron(found.planner)
        plans = [Account.of("this plan", found),
                 Account.of("fastest plan", search(planner(False)))]  # fmt: skip
        plans += [] if beside is None else [beside]
        solver = self.solver or "ilp"
        return Comparison(solver, least.proved, least.bound, least.gap, least.columns, plans)


def with_comparison(told: Explanation, beside: Comparison) -> dict[str, object]:
    """The explanation of the plan with one more key, `redundancy`."""
    own = {each.name: getattr(told, each.name) for each in fields(told)}
    return own | {"redundancy": beside}


def comparison_words(told: Comparison) -> str:
    """The comparison as text."""
    from primepar.plan.redundancy.compare import table

    if told.solver == "dp":
        how = "no plan of the space has less redundant memory, by the dynamic program"
    elif told.proved:
        how = (f"no plan of the space within the bounds has less redundant memory: proved by the "
               f"integer program, {told.variables:,} variables, gap {told.gap:g}")  # fmt: skip
    else:
        how = (f"not proved to have the least redundant memory: stopped by --timeout, when none "
               f"had less than {told.bound / 2**20:,.1f} MiB (gap {told.gap:.2%})")  # fmt: skip
    return f"\n{table(told.plans)}\n\n{how}\n"
