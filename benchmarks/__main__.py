"""`python -m benchmarks`: times of the proofs and of the planner here, and costs of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Annotated, get_args

import typer

from benchmarks.pipelines import measure_pipelines, pipeline_lines
from benchmarks.programs import cases
from benchmarks.proofs import (
    PrimitiveRow,
    ProgramRow,
    measure_primitives,
    measure_programs,
    measurements,
)
from benchmarks.searches import measure_plans, plan_lines, plan_measurements
from primepar.cli import main
from primepar.commands.options import MOST_DEVICES, JsonOption, json_text
from primepar.commands.progress import progress
from primepar.commands.verify import EXIT_CODES, LONGEST
from primepar.errors import ConfigError
from primepar.files import write_text
from primepar.partition.pipeline.actions import ScheduleName

RANKS = "4,16,64,256,1024"
TIMEOUT = 60.0
DEVICES = "4,8,16,32,64,256,1024"
MOST_PLANNED = 1024
STAGES = "2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"
MOST_STAGES = 64


app = typer.Typer(
    help="Measure the proofs, the planner or pipelines on this machine.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("verify", epilog="Example: python -m benchmarks verify --ranks 4,16,64 -o plot.svg")
def bench_verify(
    ranks: Annotated[
        str, typer.Option(metavar="N,N,...", help="Sizes of the programs: square numbers of ranks.")
    ] = RANKS,
    timeout: Annotated[
        float, typer.Option(help="Seconds for the plain encoding on each program.")
    ] = TIMEOUT,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PLOT.SVG", help="Write the plot there."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure the proofs: of programs of growing size, and of each primitive for every side.

    Each program is also given to the plain encoding in Z3, one integer for each instruction, which
    decides deadlock-freedom alone. Ends with 0 if all is proved.
    """
    sizes = _sizes(ranks)
    if not 0.001 <= timeout <= LONGEST:
        raise ConfigError(f"--timeout: expected seconds from 0.001 to {LONGEST}, got {timeout:g}")
    if output is not None and output.suffix != ".svg":
        raise ConfigError(f"--output: expected a name that ends with .svg, got {output}")
    chosen = [case for size in sizes for case in cases(size)]
    with progress(measurements(len(chosen))) as tick:
        programs = measure_programs(chosen, timeout, tick)
        primitives = measure_primitives(tick)
    if output is not None:
        write_text(output, plot(programs, timeout))
    if json:
        measured = {"plain_limit": timeout, "programs": programs, "primitives": primitives}
        typer.echo(json_text(measured), nl=False)
    else:
        typer.echo("\n".join([*_program_lines(programs, timeout), "",
                              *_primitive_lines(primitives)]))  # fmt: skip
    verdicts = {row.verdict for row in programs} | {row.verdict for row in primitives}
    raise typer.Exit(max(EXIT_CODES[verdict] for verdict in verdicts))


@app.command("plan", epilog="Example: python -m benchmarks plan --devices 4,8,16")
def bench_plan(
    devices: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of devices: powers of two.")
    ] = DEVICES,
    json: JsonOption = False,
) -> None:
    """Measure the planner: the search for a block of each model of PrimePar's paper.

    The paper's times are printed next to it.
    """
    counts = _devices(devices)
    with progress(plan_measurements(counts)) as tick:
        plans = measure_plans(counts, tick)
    typer.echo(json_text({"plans": plans}) if json else "\n".join(plan_lines(plans)), nl=not json)


@app.command("pipelines", epilog="Example: python -m benchmarks pipelines --stages 2,4,8")
def bench_pipelines(
    stages: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of stages, from 1 to 64.")
    ] = STAGES,
    json: JsonOption = False,
) -> None:
    """Count bubble and stashes of every pipeline schedule on emulated devices.

    The formula is printed in brackets. Ends with 1 if one gives another number.
    """
    counts = _stages(stages)
    with progress(len(counts) * len(get_args(ScheduleName))) as tick:
        rows = measure_pipelines(counts, tick)
    typer.echo(json_text(rows) if json else "\n".join(pipeline_lines(rows)), nl=not json)
    raise typer.Exit(0 if all(row.equal for row in rows) else 1)


def _stages(text: str) -> list[int]:
    counts = []
    for part in (part.strip() for part in text.split(",")):
        is_number = part.isascii() and part.isdigit() and len(part) < 10
        if not is_number or not 1 <= int(part) <= MOST_STAGES:
            raise ConfigError(
                f"--stages: expected numbers from 1 to {MOST_STAGES}, got {part!r}: "
                "write --stages 2,4,8"
            )
        counts.append(int(part))
    return counts


def _devices(text: str) -> list[int]:
    counts = []
    for part in (part.strip() for part in text.split(",")):
        is_number = part.isascii() and part.isdigit() and len(part) < 10
        count = int(part) if is_number else 0
        if not 4 <= count <= MOST_PLANNED or count & (count - 1):
            raise ConfigError(
                f"--devices: expected powers of two from 4 to {MOST_PLANNED}, got {part!r}: "
                "write --devices 4,8,16"
            )
        counts.append(count)
    return counts


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        is_number = part.isascii() and part.isdigit() and len(part) < 10
        size = int(part) if is_number else 0
        if not 1 <= size <= MOST_DEVICES or isqrt(size) ** 2 != size:
            raise ConfigError(
                f"--ranks: expected square numbers from 1 to {MOST_DEVICES}, got {part!r}: "
                "write --ranks 4,16,64"
            )
    return [int(part) for part in parts]


def _program_lines(rows: list[ProgramRow], timeout: float) -> Iterator[str]:
    width = max(len("program"), *(len(row.program) for row in rows))
    yield f"{'program':{width}}  ranks  instructions  verdict    seconds  peak MiB  plain Z3"
    for row in rows:
        over = f"> {timeout:g} s"
        plain = f"{over:>9}" if row.plain_seconds is None else f"{row.plain_seconds:7.3f} s"
        yield (
            f"{row.program:{width}}  {row.ranks:5}  {row.instructions:12,}  {row.verdict:8}"
            f"  {row.seconds:8.3f}  {row.peak_mib:8.0f} {plain}"
        )


def _primitive_lines(rows: list[PrimitiveRow]) -> Iterator[str]:
    width = max(len("primitive, every side"), *(len(row.primitive) for row in rows))
    yield f"{'primitive, every side':{width}}  verdict    seconds"
    for row in rows:
        yield f"{row.primitive:{width}}  {row.verdict:8}  {row.seconds:8.3f}"


def plot(rows: list[ProgramRow], timeout: float) -> str:
    """SVG of seconds against instructions, ours and the plain encoding's."""
    from benchmarks.pictures.log_log import Measurement, log_log_svg

    ours, plain = [], []
    for row in rows:
        name = f"{row.program}, {row.ranks} ranks"
        ours.append(Measurement(row.instructions, row.seconds, f"{name}: {row.seconds:.3f} s"))
        seconds = row.plain_seconds or timeout
        cut_off = row.plain_seconds is None
        tooltip = f"{name}, plainly: {'more than ' * cut_off}{seconds:.3f} s"
        plain.append(Measurement(row.instructions, seconds, tooltip, cut_off))
    return log_log_svg(
        "Seconds to prove a program",
        ("instructions", "seconds"),
        {"verify, every property": ours, "plain Z3, deadlock alone": plain},
        max(ours, key=lambda point: point.x),
    )


if __name__ == "__main__":
    main(app, "python -m benchmarks")
