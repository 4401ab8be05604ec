"""`primepar profile`: measure this machine, and write it as a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from primepar.commands.options import file_option
from primepar.distributed.training.settings import DeviceChoice, Dtype


def profile(
    output: Annotated[
        Path,
        file_option("Write the cluster file, cluster.toml.", "--output", "-o", metavar="FILE"),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(help="Start this many processes here, a power of two.", show_default="4"),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of what is multiplied and sent.")] = "float32",
    device: Annotated[
        DeviceChoice, typer.Option(help="What is measured; auto is CUDA where there is a GPU.")
    ] = "auto",
) -> None:
    """Measure this machine on several processes, and write it as a cluster file.

    `plan` and `simulate` take the file as --cluster.
    """
    from primepar.distributed.profiling.measure import Profile
    from primepar.distributed.profiling.measure import profile as measure

    asked = Profile(output=str(output), ranks=ranks, dtype=dtype, device=device)
    raise typer.Exit(measure(asked))
