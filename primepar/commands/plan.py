"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Final

import typer

from primepar.commands.options import JsonOption
from primepar.commands.plan_objective import Goal, Objective, front_words, redundancy_words
from primepar.commands.plan_options import (
    BatchOption,
    ClusterOption,
    DevicesOption,
    DtypeOption,
    ExplainOption,
    MemoryOption,
    ModelArgument,
    NodesOption,
    OutputOption,
    PositionsOption,
    Question,
    SpaceOption,
    WithinOption,
    explained,
    print_result,
)
from primepar.commands.progress import progress
from primepar.errors import ConfigError, UndecidedError

SECONDS_OF_A_DAY: Final = 86400


def plan(
    model: ModelArgument,
    cluster: ClusterOption,
    nodes: NodesOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = 8,
    positions: PositionsOption = None,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    alpha: Annotated[
        float, typer.Option(help="Seconds that a GiB of device memory is worth.")
    ] = 0.0,
    objective: Annotated[
        Goal,
        typer.Option(
            help="Least time in --memory, least memory --within seconds, the Pareto front of "
            "both, or the fewest bytes beyond one copy of every tensor."
        ),
    ] = "time",
    memory: MemoryOption = None,
    within: WithinOption = None,
    explain: ExplainOption = False,
    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens to train on: adds days.", show_default=False),
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Find the plan with the shortest step, the least memory or the least redundant memory.

    It is written with -o, all plans of a front into a folder. `show`, `verify`, `simulate` and
    `train` take it. Ends with 3 where the least redundancy is not proved within 60 seconds.
    """
    question = Question(model, cluster, devices, batch, dtype, space, alpha, nodes, positions)
    asked = Objective(memory, within, objective)
    from primepar.plan.search.ranked import ComparedPlan

    asked.check(alpha, {"--explain": explain})
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens: expected more than 0 tokens, got {tokens:g}: write 1e12")
    if objective == "pareto":
        with progress() as tick:
            front = asked.front(question.planner(tick), output)
        print_result(front, front_words(front), output, json)
        return
    solution = None
    with progress() as tick:
        if objective == "redundancy":
            result, solution = asked.least_redundant(question.planner(tick, posted=False))
            best = [ComparedPlan("", result)]
        else:
            best = asked.best(question.planner(tick))
        explanation = explained(best, explain, output, tick)
    if tokens is not None:
        days = tokens / explanation.tokens_per_second / SECONDS_OF_A_DAY
        explanation = replace(explanation, days=days)
    from primepar.plan.search.explanation_text import words

    if solution is None:
        print_result(explanation, words(explanation), output, json)
        return
    known = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    known["redundancy"] = {"redundant": result.cost, "bound": solution.bound,
                           "proved": solution.proved, "variables": solution.columns}  # fmt: skip
    text = words(explanation) + redundancy_words(result.cost, solution)
    print_result(known, text, output, json)
    raise typer.Exit(0 if solution.proved else UndecidedError.exit_code)
