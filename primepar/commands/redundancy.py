"""`primepar redundancy`: the plan with the least redundant memory, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from primepar.commands.options import JsonOption
from primepar.commands.plan_objective import Bounds
from primepar.commands.plan_options import (
    BatchOption,
    ClusterOption,
    DevicesOption,
    DtypeOption,
    ExplainOption,
    MemoryOption,
    ModelArgument,
    OutputOption,
    Question,
    SpaceOption,
    WithinOption,
    explained,
    print_result,
)
from primepar.commands.progress import progress
from primepar.errors import ConfigError, PlanError, UndecidedError

if TYPE_CHECKING:
    from primepar.plan.redundancy.compare import Account
    from primepar.plan.redundancy.least_redundancy import Least
    from primepar.plan.search.explain import Explanation
    from primepar.plan.search.planner import Planner
    from primepar.plan.search.result import SearchResult

Solver = Literal["ilp", "dp"]
TIMEOUT = 60.0
"""Seconds that the integer program may take by default."""


@dataclass(frozen=True)
class Comparison:
    """The least redundancy: how it was found, and that of other plans.

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
    """The options that choose how the least redundancy is found."""

    bounds: Bounds
    solver: Solver
    timeout: float | None

    def check(self) -> None:
        """Raise `ConfigError` for options without effect, or a limit that is none."""
        self.bounds.check_bounds()
        if self.solver == "dp":
            given = {"--within": self.bounds.within is not None,
                     "--memory": self.bounds.memory is not None,
                     "--timeout": self.timeout is not None}  # fmt: skip
            why = "only the integer program keeps to bounds, or to a time"
            self.bounds.refuse(given, "--solver dp", why)
        if self.timeout is not None and not (isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError(f"--timeout: expected more than 0 seconds, got {self.timeout:g}")

    def best(self, planner: Planner) -> tuple[SearchResult, Comparison]:
        """The plan with the least redundancy within the bounds, and how it compares.

        Raises `PlanError` where no plan is within the bounds, `UndecidedError` if none was found in
        time.
        """
        made = planner.like(planner, tradeoffs=True)
        least = self._by_search(made) if self.solver == "dp" else self._by_program(made)
        if least.result is None:
            raise self._none(planner, least)
        return least.result, self._comparison(least, least.result, planner)

    def _by_search(self, planner: Planner) -> Least:
        from primepar.plan.redundancy.least_redundancy import least_by_search

        least, cluster = least_by_search(planner), planner.training.cluster
        if least.result is not None and least.result.memory > cluster.memory:
            raise PlanError(
                f"expected a plan within the {cluster.memory:,.0f} bytes of a device of the "
                f"cluster {cluster.name}, got one that takes {least.result.memory:,.0f}: leave "
                "--solver dp out, as only the integer program keeps to bounds"
            )
        return least

    def _by_program(self, planner: Planner) -> Least:
        """First without the memory limit of a device, as the plan mostly keeps to it."""
        from primepar.plan.redundancy.least_redundancy import Within, least

        asked, device = self.bounds, planner.training.cluster.memory
        timeout = self.timeout or TIMEOUT
        within = Within(asked.within or inf, asked.memory or inf)
        result = least(planner, within, timeout)
        if asked.memory is None and result.result is not None and result.result.memory > device:
            return least(planner, replace(within, memory=device), timeout)
        return result

    def _none(self, planner: Planner, least: Least) -> PlanError | UndecidedError:
        """Why there is no plan. Raises `PlanError` itself where one bound alone leaves none."""
        from primepar.plan.redundancy.integer_program import MOST_COLUMNS

        asked = self.bounds
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
        fastest = asked.fastest(planner, asked.memory or planner.training.cluster.memory)
        return PlanError(
            f"expected a plan with a step within the {asked.within:g} seconds of --within and "
            f"within the memory of a device, got none: the fastest within the memory takes "
            f"{fastest.seconds:.6g} seconds: give more of one"
        )

    def _comparison(self, least: Least, result: SearchResult, planner: Planner) -> Comparison:
        """The plan that was found, compared with the fastest one and Megatron's."""
        from primepar.plan.redundancy.compare import Account, megatron
        from primepar.plan.search.search import search

        of_megatron = megatron(result.planner)
        plans = [Account.of("this plan", result),
                 Account.of("fastest plan", search(planner))]  # fmt: skip
        plans += [] if of_megatron is None else [of_megatron]
        return Comparison(self.solver, least.proved, least.bound, least.gap, least.columns, plans)


def redundancy(
    model: ModelArgument,
    cluster: ClusterOption,
    devices: DevicesOption,
    batch: BatchOption = 8,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    memory: MemoryOption = None,
    within: WithinOption = None,
    solver: Annotated[
        Solver,
        typer.Option(help="The integer program, or the dynamic program, which takes no bounds."),
    ] = "ilp",
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time limit of the integer program.", show_default="60"
        ),
    ] = None,
    explain: ExplainOption = False,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Find the plan that holds the fewest bytes beyond one copy of every tensor.

    It is compared with the fastest plan and with Megatron's. Ends with 3 if the time limit passes
    before the plan is proved to be the best.
    """
    question = Question(model, cluster, devices, batch, dtype, space)
    solving = Solving(Bounds(memory, within), solver, timeout)
    solving.check()
    from primepar.plan.search.explanation_text import words
    from primepar.plan.search.ranked import ComparedPlan

    with progress() as tick:
        best, comparison = solving.best(question.planner(tick, posted=False))
        explanation = explained([ComparedPlan("", best)], explain, output, tick)
    text = words(explanation) + comparison_words(comparison)
    print_result(with_comparison(explanation, comparison), text, output, json)
    raise typer.Exit(0 if comparison.proved else UndecidedError.exit_code)


def with_comparison(explanation: Explanation, comparison: Comparison) -> dict[str, object]:
    """The explanation of the plan with one more key, `redundancy`."""
    keys = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return keys | {"redundancy": comparison}


def comparison_words(comparison: Comparison) -> str:
    """The comparison as text."""
    from primepar.plan.redundancy.compare import table

    if comparison.solver == "dp":
        how = "no plan of the space has less redundant memory, by the dynamic program"
    elif comparison.proved:
        how = (
            "no plan of the space within the bounds has less redundant memory: proved by the "
            f"integer program, {comparison.variables:,} variables, gap {comparison.gap:g}"
        )
    else:
        how = (
            "not proved to have the least redundant memory: stopped by --timeout, when none "
            f"had less than {comparison.bound / 2**20:,.1f} MiB (gap {comparison.gap:.2%})"
        )
    return f"\n{table(comparison.plans)}\n\n{how}\n"
