"""`primepar train`: train a GPT on a mesh of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from primepar.distributed.training.settings import Settings, meta_of, shown


def of_setting(name: str, metavar: str | None = None) -> typer.models.OptionInfo:
    """An option for a setting, with the meaning and the default of the table."""
    meta, default = meta_of(name), getattr(Settings(), name)
    otherwise = meta.extra["otherwise"] if default is None else str(default)
    option: typer.models.OptionInfo = typer.Option(
        shown(name),
        metavar=metavar,
        help=f"{meta.description[0].upper()}{meta.description[1:]}.",
        show_default=otherwise if otherwise not in ("none", "False") else False,
    )
    return option


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
    plan: Annotated[str | None, of_setting("plan", "FILE|SEQUENCE")] = None,
    steps: Annotated[int | None, of_setting("steps")] = None,
    data: Annotated[str | None, of_setting("data", "FILE")] = None,
    checkpoint: Annotated[str | None, of_setting("checkpoint", "DIR")] = None,
    resume: Annotated[bool, of_setting("resume")] = False,
    timeout: Annotated[float | None, of_setting("timeout", "SECONDS")] = None,
    save_before: Annotated[float | None, of_setting("save_before", "SECONDS")] = None,
    verbose: Annotated[bool, of_setting("verbose")] = False,
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
