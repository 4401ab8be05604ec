"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.commands.options import JsonOption, json_text
from primepar.commands.plan_objective import Goal, Objective, front_words
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
)
from primepar.commands.progress import progress

if TYPE_CHECKING:
    from primepar.plan.search.explain import Explanation


def plan(
    model: ModelArgument,
    cluster: ClusterOption,
    devices: DevicesOption,
    batch: BatchOption = 8,
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

    It is written with -o. `show`, `verify`, `simulate` and `train` take it.
    """
    question = Question(model, cluster, devices, batch, dtype, space, alpha)
    asked = Objective(memory, within, objective)
    asked.check(alpha, {"--explain": explain, "--output": output is not None})
    if objective == "pareto":
        with progress() as tick:
            front = asked.front(question.planner(tick)(True))
        typer.echo(json_text(front) if json else front_words(front), nl=False)
        return
    explanation = _best(question, asked, explain, output)
    if json:
        typer.echo(json_text(explanation), nl=False)
        return
    from primepar.plan.search.explain import words

    typer.echo(words(explanation), nl=False)
    if output is not None:
        typer.echo(f"wrote {output}")


def _best(question: Question, asked: Objective, explain: bool, output: Path | None) -> Explanation:
    """The best plan in words and numbers; written where there is a place for it."""
    from primepar.plan.plan_file import save_plan
    from primepar.plan.search.explain import explain as explained

    with progress() as tick:
        best = asked.best(question.planner(tick))
        tick("what every device sends and holds")
        explanation = explained(best, neighbours=explain)
    if output is not None:
        save_plan(best.plan, output)
    return explanation
