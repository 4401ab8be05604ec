"""`primepar train`: train a GPT on a mesh of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of the run (TOML).", show_default=False),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Change any setting, like optimizer.lr=0.01. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print all settings as TOML, and do not train.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Start this many processes here.",
            show_default="those that were started",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SEQUENCE",
            help="A plan file (.json), or one sequence for every linear operator, like K,P2x2.",
            show_default="P{s}x{s} on s * s processes",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.", show_default="100")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Text to train on: a file, a folder or a pattern. The last tenth is held out.",
            show_default="the standard library's sources",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write checkpoints into this folder.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint, on any mesh.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="End if a rank waits for another one longer than this.",
            show_default="60.0",
        ),
    ] = None,
    save_before: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Save and end this long before the time limit, of SLURM or faults.time_limit.",
            show_default="never",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print which file of the source does what.")
    ] = False,
) -> None:
    """Train a byte-level GPT, or the model of a plan, on several processes.

    Run it alone, with --ranks N, or under mpirun, torchrun or srun. The program of a step is
    proved first. Ctrl-C and SIGTERM end the run after its step. Options and --set override
    the file.
    """
    from primepar.distributed.training.settings_file import config_text, settings_of

    settings = settings_of(config, changes or (), {
        "plan": plan, "steps": steps, "data": data, "checkpoint": checkpoint,
        "resume": resume or None, "timeout": timeout, "save_before": save_before,
        "verbose": verbose or None,
    })  # fmt: skip
    if show_config:
        typer.echo(config_text(settings), nl=False)
        return
    from primepar.commands.proof import prove
    from primepar.distributed.training.run import train as run

    raise typer.Exit(run(settings, ranks, prove))
