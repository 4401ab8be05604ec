"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from primepar.commands.options import JsonOption
from primepar.commands.plan_objective import Goal, Objective
from primepar.commands.plan_redundancy import Solver, Solving
from primepar.commands.plan_run import Question, choose, list_front, list_pipelines
from primepar.commands.profile import need, profiled, refuse_beside
from primepar.distributed.training.settings import DeviceChoice
from primepar.plan.cluster import ready_clusters

Space = Literal["paper", "all"]


def plan(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json as Hugging Face writes it, or a published model, as opt-175b.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"Cluster in TOML, or a ready one: {', '.join(ready_clusters())}.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices of the plan, a power of two.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a training step.")] = 8,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of parameters and activations.",
            show_default="the cluster's first",
        ),
    ] = None,
    space: Annotated[
        Space, typer.Option(help="Sequences to choose from: the paper's, or all that there are.")
    ] = "paper",
    alpha: Annotated[
        float, typer.Option(help="Seconds that a GiB of a device's memory is worth.")
    ] = 0.0,
    objective: Annotated[
        Goal,
        typer.Option(
            help="What is least: time in --memory, memory --within seconds, or redundant memory."
        ),
    ] = "time",
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES", help="Most memory of a device.", show_default="the cluster's"
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest step with --objective memory."),
    ] = None,
    solver: Annotated[
        Solver | None,
        typer.Option(
            help="With --objective redundancy: the integer program, or the dynamic program.",
            show_default="ilp",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Most time of the integer program.", show_default="60"
        ),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="List all plans that none beats in both.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Price the nearest other sequences too.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan, plan.json."),
    ] = None,
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline", help="List all splits into stages, replicas and devices of a replica."
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Measure this machine instead, into a cluster file, -o cluster.toml."
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes that --profile starts.", show_default="4"),
    ] = None,
    device: Annotated[
        DeviceChoice, typer.Option(help="What --profile measures; auto is CUDA where there is it.")
    ] = "auto",
    json: JsonOption = False,
) -> None:
    """Find the plan with the shortest training step, or the least memory, by the cost model."""
    if profile:
        refuse_beside("beside --profile", "which measures this machine and plans nothing", {
            "MODEL": model, "--cluster": cluster, "--devices": devices, "--memory": memory,
            "--within": within, "--pareto": pareto, "--explain": explain, "--pipeline": pipeline,
            "--json": json, "--solver": solver, "--timeout": timeout,
        })  # fmt: skip
        raise typer.Exit(profiled(output, ranks, dtype, device))
    refuse_beside("without --profile", "which starts processes", {"--ranks": ranks})
    need(context, model=model, cluster=cluster, devices=devices)
    assert model is not None
    assert cluster is not None
    assert devices is not None
    question = Question(model, cluster, devices, batch, dtype, space, alpha)
    asked = Objective(objective, memory, within, pareto)
    asked.check(alpha, {"--explain": explain, "--output": output is not None})
    solving = Solving(asked, solver, timeout)
    solving.check()
    if pipeline:
        refuse_beside("beside --pipeline", "which lists all splits by their time", {
            "--objective": objective != "time", "--alpha": alpha or None, "--memory": memory,
            "--pareto": pareto, "--explain": explain, "--output": output, "--solver": solver,
            "--timeout": timeout,
        })  # fmt: skip
        list_pipelines(question, json)
    elif pareto:
        list_front(question, asked, json)
    else:
        raise typer.Exit(choose(question, solving, explain, output, json))
