"""`primepar price`: what a plan costs on a cluster, next to the best one."""

from __future__ import annotations

from typing import Annotated

import typer

from primepar.api.placement import COMMAND_LINE
from primepar.api.priced_plan import SEQUENCES, priced_plan
from primepar.commands.options import JsonOption
from primepar.commands.plan_options import ClusterOption, DtypeOption, SpaceOption, print_result
from primepar.commands.progress import progress


def price(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLAN",
            help="plan.json, or a preset as megatron, with --model and --devices.",
            show_default=False,
        ),
    ],
    cluster: ClusterOption,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Model of a preset: config.json or a name.", show_default=False
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices of a preset.", show_default=False)
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences of a training step.", show_default="the plan's, or 8"),
    ] = None,
    dtype: DtypeOption = None,
    space: SpaceOption = "paper",
    json: JsonOption = False,
) -> None:
    """Price a plan: a file, or a preset of a model, next to the best plan of a space.

    The best is that of `primepar plan` within the memory of a device. Each operator has what it
    takes more than there.
    """
    plan = priced_plan(target, model, devices, COMMAND_LINE)
    from primepar.plan.cluster import load_cluster
    from primepar.plan.pipeline.split_plan import price_of
    from primepar.plan.search.explanation_text import words

    machine = load_cluster(cluster)
    with progress() as tick:
        sequences = batch or plan.batch or SEQUENCES
        explanation = price_of(plan, machine, sequences, dtype, space, tick)
    print_result(explanation, words(explanation), None, json)
