"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import typer

from primepar.commands.options import JsonOption
from primepar.commands.plan_objective import Goal, Objective, front_words
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
from primepar.errors import ConfigError

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
            help="Least time in --memory, least memory --within seconds, or the Pareto front of "
            "both."
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
    """Find the plan with the shortest training step, or the least memory, by the cost model.

    It is written with -o, all plans of a front into a folder. `show`, `verify`, `simulate` and
    `train` take it.
    """
    question = Question(model, cluster, devices, batch, dtype, space, alpha, nodes, positions)
    asked = Objective(memory, within, objective)
    asked.check(alpha, {"--explain": explain})
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens: expected more than 0 tokens, got {tokens:g}: write 1e12")
    if objective == "pareto":
        with progress() as tick:
            front = asked.front(question.planner(tick), output)
        print_result(front, front_words(front), output, json)
        return
    with progress() as tick:
        best = asked.best(question.planner(tick))
        explanation = explained(best, explain, output, tick)
    if tokens is not None:
        days = tokens / explanation.tokens_per_second / SECONDS_OF_A_DAY
        explanation = replace(explanation, days=days)
    from primepar.plan.search.explanation_text import words

    print_result(explanation, words(explanation), output, json)
