"""`primepar plan --profile`: which options say something beside it, and which must be there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import typer

from primepar.distributed.training.settings import DeviceChoice, Dtype
from primepar.errors import ConfigError


def need(context: typer.Context, **given: object) -> None:
    """Refuse a call without one of some parameters, as Typer refuses it, unless it is given."""
    params: list[Any] = context.command.params
    for param in params:
        if param.name in given and given[param.name] is None:
            raise typer.BadParameter("", ctx=context, param=param)


def refuse_beside(option: str, because: str, others: Mapping[str, object]) -> None:
    """Raise `ConfigError` for the first of some options that is given and says nothing."""
    for name, value in others.items():
        if value is not None and value is not False:
            got = "" if value is True else f", got {value}"
            raise ConfigError(f"{name}: expected none {option}, {because}{got}: leave it out")


def profiled(
    output: Path | None, ranks: int | None, dtype: str | None, device: DeviceChoice
) -> int:
    """Measure this machine into a cluster file, and return the exit code."""
    from primepar.distributed.profiling.measure import Profile, profile

    if output is None:
        raise ConfigError(
            "--profile: expected a place for the cluster file, got none: write -o cluster.toml"
        )
    dtype = dtype or "float32"
    if dtype not in get_args(Dtype):
        raise ConfigError(f"--dtype: expected one of {', '.join(get_args(Dtype))}, got {dtype!r}")
    return profile(
        Profile(output=str(output), ranks=ranks, dtype=cast("Dtype", dtype), device=device)
    )
