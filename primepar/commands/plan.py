"""`primepar plan`: search the plan of a model on a cluster, or price a plan."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from primepar.api.placement import COMMAND_LINE
from primepar.api.priced_plan import SEQUENCES, priced_plan
from primepar.commands.options import JsonOption
from primepar.commands.plan_objective import Goal, Objective, front_words, redundancy_words
from primepar.commands.plan_options import (
    ClusterOption,
    DevicesOption,
    DtypeOption,
    ExplainOption,
    MemoryOption,
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
from primepar.plan.plan_file import is_plan
from primepar.plan.presets import names_preset

SECONDS_OF_A_DAY: Final = 86400


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A config.json of Hugging Face, or the name of a published model, as opt-175b; or "
            "a plan, which is priced: plan.json, or a preset as megatron with --model.",
            show_default=False,
        ),
    ],
    cluster: ClusterOption,
    nodes: NodesOption = None,
    devices: DevicesOption = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sequences of a training step.", show_default="8, or those of the plan"
        ),
    ] = None,
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
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Model of a preset: config.json or a name.", show_default=False
        ),
    ] = None,
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

    A plan instead of a model is priced, next to the best plan within the memory of a device. Each
    operator has what it takes more than there.
    """
    question = Question(target, cluster, devices, batch or SEQUENCES, dtype, space, alpha, nodes,
                        positions)  # fmt: skip
    asked = Objective(memory, within, objective)
    from primepar.plan.search.explanation_text import words
    from primepar.plan.search.ranked import ComparedPlan

    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens: expected more than 0 tokens, got {tokens:g}: write 1e12")
    is_file = target.endswith(".json") and is_plan(Path(target))
    is_priced = bool(model) or names_preset(target) or is_file
    if not is_priced:
        asked.check(alpha, {"--explain": explain})
    if objective == "pareto" and not is_priced:
        with progress() as tick:
            front = asked.front(question.planner(tick), output)
        print_result(front, front_words(front), output, json)
        return
    solution = None
    with progress() as tick:
        if is_priced:
            given = {"--memory": memory is not None, "--within": within is not None,
                     "--alpha": alpha > 0, "--explain": explain, "--output": output is not None,
                     "--positions": positions is not None,
                     "--objective": objective != "time"}  # fmt: skip
            asked.refuse(given, target, "that is a plan, which is priced")
            priced = priced_plan(target, model, devices, COMMAND_LINE)
            from primepar.plan.cluster import load_cluster
            from primepar.plan.search.explain import price_of

            sequences, machine = batch or priced.batch or SEQUENCES, load_cluster(cluster, nodes)
            explanation = price_of(priced, machine, sequences, dtype, space, tick)
        elif objective == "redundancy":
            result, solution = asked.least_redundant(question.planner(tick, posted=False))
            explanation = explained([ComparedPlan("", result)], explain, output, tick)
        else:
            best = asked.best(question.planner(tick))
            explanation = explained(best, explain, output, tick)
    if tokens is not None:
        days = tokens / explanation.tokens_per_second / SECONDS_OF_A_DAY
        explanation = replace(explanation, days=days)
    if solution is None:
        print_result(explanation, words(explanation), output, json)
        return
    known = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    known["redundancy"] = {"redundant": result.cost, "bound": solution.bound,
                           "proved": solution.proved, "variables": solution.columns}  # fmt: skip
    text = words(explanation) + redundancy_words(result.cost, solution)
    print_result(known, text, output, json)
    raise typer.Exit(0 if solution.proved else UndecidedError.exit_code)
