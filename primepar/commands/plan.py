"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from typing import Annotated

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
    if objective == "pareto":
        with progress() as tick:
            front = asked.front(question.planner(tick)(True), output)
        print_result(front, front_words(front), output, json)
        return
    with progress() as tick:
        best = asked.best(question.planner(tick))
        explanation = explained(best, explain, output, tick)
    from primepar.plan.search.explanation_text import words

    print_result(explanation, words(explanation), output, json)
