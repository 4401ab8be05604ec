"""`primepar plan`: search the plan of a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from primepar.commands.options import JsonOption, json_text
from primepar.commands.plan_objective import Goal, Objective, front_words
from primepar.commands.profile import need, profiled, refuse_beside
from primepar.commands.progress import progress
from primepar.distributed.settings import DeviceChoice
from primepar.errors import ConfigError
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
        Goal, typer.Option(help="What is least: time in --memory, or memory --within seconds.")
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
    from primepar.models.sizes import find_model
    from primepar.plan.cluster import load_cluster
    from primepar.plan.plan import save_plan
    from primepar.plan.search.explain import explain as explained
    from primepar.plan.search.explain import words
    from primepar.plan.search.planner import Planner

    if profile:
        refuse_beside("beside --profile", "which measures this machine and plans nothing", {
            "MODEL": model, "--cluster": cluster, "--devices": devices, "--memory": memory,
            "--within": within, "--pareto": pareto, "--explain": explain, "--json": json,
        })  # fmt: skip
        raise typer.Exit(profiled(output, ranks, dtype, device))
    refuse_beside("without --profile", "which starts processes", {"--ranks": ranks})
    need(context, model=model, cluster=cluster, devices=devices)
    assert model is not None
    assert cluster is not None
    assert devices is not None
    if not 0 <= alpha < float("inf"):
        raise ConfigError(f"--alpha: expected 0 or more seconds for a GiB, got {alpha}")
    asked = Objective(objective, memory, within, pareto)
    asked.check(alpha, {"--explain": explain, "--output": output is not None})

    with progress() as tick:

        def planner(tradeoffs: bool = False) -> Planner:
            return Planner.of(find_model(model), load_cluster(cluster), devices, batch, dtype,
                              space, alpha / 2**30, tradeoffs, tick=tick)  # fmt: skip

        if pareto:
            front = asked.front(planner(tradeoffs=True))
        else:
            found = asked.best(planner)
            tick("what every device sends")
            told = explained(found, neighbours=explain)
    if pareto:
        typer.echo(json_text(front) if json else front_words(front), nl=False)
        return
    if output is not None:
        save_plan(found.plan, output)
    typer.echo(json_text(told) if json else words(told), nl=False)
    if output is not None and not json:
        typer.echo(f"wrote {output}")
