"""`primepar plan`: search the plan of a model on a cluster, or price a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from primepar.commands.options import JsonOption, file_option, json_text
from primepar.commands.plan_objective import Goal, Question, Recompute, Shard, Space
from primepar.commands.plan_several import answers, counts
from primepar.commands.progress import progress
from primepar.errors import ConfigError
from primepar.plan.cluster import shipped_clusters


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
    cluster: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help=f"Cluster file (TOML), or a preset: {', '.join(shipped_clusters())}.",
            show_default=False,
        ),
    ],
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of the cluster.", show_default="those of the file")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGERS",
            help="Devices of the plan; several, as 8,16,32, are a table.",
            show_default="all of the nodes",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGERS",
            help="Sequences of a training step; several, as 8,16,32, are a table.",
            show_default="8, or those of the plan",
        ),
    ] = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens of a sequence.", show_default="the model's context, at most 8192"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of parameters and activations.",
            show_default="the cluster's first",
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Devices of tensor parallelism.", show_default="any")
    ] = None,
    pp: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stages of a pipeline.",
            show_default="any",
        ),
    ] = None,
    dp: Annotated[
        int | None, typer.Option(min=1, help="Devices of data parallelism.", show_default="any")
    ] = None,
    cp: Annotated[
        int | None,
        typer.Option(min=1, help="Parts of a sequence: context parallelism.", show_default="any"),
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Devices of expert parallelism: priced, not run.",
            show_default="as many as divide the experts",
        ),
    ] = None,
    shard: Annotated[
        Shard | None,
        typer.Option(
            help="What is in shards over equal devices: ZeRO-1, 2 or 3.",
            show_default="the fastest that is run",
        ),
    ] = None,
    recompute: Annotated[
        Recompute | None,
        typer.Option(help="Activations to compute again.", show_default="the fastest that fits"),
    ] = None,
    space: Annotated[
        Space,
        typer.Option(
            help="Sequences to choose from: the paper's, all of the library but grids, or those "
            "too."
        ),
    ] = "paper",
    objective: Annotated[
        Goal,
        typer.Option(
            help="Least time in --memory, least memory --within seconds, the fewest bytes beyond "
            "one copy of every tensor, or the table of all splits into stages and replicas."
        ),
    ] = "time",
    memory: Annotated[
        float | None,
        typer.Option(metavar="BYTES", help="Device memory limit.", show_default="the cluster's"),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest training step.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Model of a preset: config.json or a name.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Price the nearest other sequences too.")
    ] = False,
    tokens: Annotated[
        float | None, typer.Option(help="Tokens to train on: adds days.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        file_option(
            "Write the plan, plan.json; of several the picture, plans.svg.",
            "--output",
            "-o",
            metavar="FILE",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the plan with the shortest step, the least memory or the least redundant memory.

    It is written with -o. `show`, `verify`, `simulate` and `train` take it. --tp, --dp, --cp
    and --ep fix degrees of parallelism, --pp the stages of a pipeline. Ends with 3 where the least
    redundancy is not proved within 60 seconds.

    A plan instead of a model is priced, next to the best plan within the memory of a device. Each
    operator has what it takes more than there.
    """
    if tokens is not None and not 0 < tokens < float("inf"):
        raise ConfigError(f"--tokens: expected more than 0 tokens, got {tokens:g}: write 1e12")
    batches, sizes = counts("--batch", batch), counts("--devices", devices)
    question = Question(
        target=target, model=model, cluster=cluster, nodes=nodes, devices=sizes[0],
        batch=batches[0],
        positions=positions, dtype=dtype, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, shard=shard,
        recompute=recompute, space=space, goal=objective,
        memory=memory, within=within, explain=explain, tokens=tokens, output=output,
    )  # fmt: skip
    with progress() as tick:
        several = len(batches) * len(sizes) > 1
        answer = answers(question, batches, sizes, tick) if several else question.answer(tick)
    if json:
        typer.echo(json_text(answer.data), nl=False)
    else:
        typer.echo(answer.text, nl=False)
        if output is not None:
            typer.echo(f"wrote {output}")
    raise typer.Exit(answer.code)
