"""`primepar show`: the space-time grid of a schedule as text, picture or trace; or a plan."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from primepar.api.drawings import grid_of
from primepar.commands.options import (
    BatchOption,
    DepthOption,
    JsonOption,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    RanksOption,
    SideOption,
    json_text,
    on_mesh,
)
from primepar.commands.plan import Making, TrainingStep, refuse_for_plan, show_plan
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import SpaceTime, grid_text
from primepar.pictures.timeline import chrome_trace
from primepar.plan import Plan
from primepar.schedule import Program, Sequence, lower, program_text, save_program
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.program_file import program_json


def show(
    target: PlanTargetArgument,
    side: SideOption = None,
    phase: Annotated[
        Literal["forward", "backward", "gradient"] | None,
        typer.Option(help="Draw only this phase.", show_default=False),
    ] = None,
    program: Annotated[
        bool, typer.Option("--program", help="The lowered program, to read, edit and verify.")
    ] = False,
    passes: Annotated[
        bool,
        typer.Option(
            "--passes", help="What each pass makes of the program of a plan's training step."
        ),
    ] = False,
    model: ModelOption = None,
    ranks: RanksOption = None,
    batch: BatchOption = None,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the picture (.svg), the Chrome trace of an emulated run (.json) or, "
            "with --program, the program (.json); of a plan, its picture or the plan (.json).",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw the space-time grid: what each device multiplies at each step, and what moves.

    `I[0,0] -> 1` is a block that leaves for device 1 while the products of the step run. A plan is
    told operator by operator: its sequence, where its input and output lie, and what moves between;
    its program is that of a whole training step, after the passes that `--passes` lists.
    """
    making = Making(model, ranks, batch, depth, positions)
    found = making.resolved(target, step=program or passes)
    if isinstance(found, Plan):
        refuse_for_plan(target, {"--side": side, "--phase": phase})
        if passes:
            _show_passes(target, making.step(found), output, program, json)
        elif program:
            _check_output(output, program)
            _show_step(making.step(found), output, json)
        else:
            show_plan(found, output, json)
        return
    if passes:
        raise TargetError(
            f"{target}: expected a plan with --passes, as they are of the program of a training "
            "step, got no plan: name one, such as megatron-sp with --model and --ranks"
        )
    _check_output(output, program)
    placed = on_mesh(target, found, side)
    lowered = _lowered(target, placed, phase)
    if output is None:
        grid = grid_of(target, placed, lowered)
        typer.echo(_text(grid, lowered, program, json), nl=False)
    elif program:
        save_program(lowered, output)
    elif output.suffix == ".svg":
        write_text(output, grid_svg(grid_of(target, placed, lowered)))
    else:
        write_text(output, json_text(_trace(placed, lowered)))
    if output is not None:
        typer.echo(f"wrote {output}")


def _show_passes(
    target: str, step: TrainingStep, output: Path | None, program: bool, json: bool
) -> None:
    """What each pass changes, as a table or as JSON."""
    if output is not None or program:
        option = "--program" if program else f"--output {output}"
        raise TargetError(
            f"{target}: expected --passes alone, which prints a table, or with --json, got {option}"
            ": leave it out"
        )
    from primepar.commands.show_passes import passes_text, stages

    found = stages(step)
    typer.echo(json_text(found) if json else passes_text(f"{target}, {step}", found), nl=False)


def _show_step(step: TrainingStep, output: Path | None, json: bool) -> None:
    """The program of a training step, as text, as JSON or into a file."""
    if output is not None:
        save_program(step.program, output)
        typer.echo(f"wrote {output}: {step}")
    else:
        text = program_json(step.program) if json else program_text(step.program)
        typer.echo(text, nl=False)


def _check_output(output: Path | None, program: bool) -> None:
    allowed = (".json",) if program else (".svg", ".json")
    if output is not None and output.suffix not in allowed:
        expected = ".json (the program)" if program else ".svg (the picture) or .json (the trace)"
        raise TargetError(f"--output: expected a name that ends with {expected}, got {output}")


def _lowered(name: str, placed: Sequence | Program, phase: Phase | None) -> Program:
    if isinstance(placed, Sequence):
        return lower(placed, phases=PHASES if phase is None else (phase,))
    if phase is not None:
        raise TargetError(
            f"{name}: expected no --phase, as a program is shown as it stands, got --phase "
            f"{phase}: leave it out"
        )
    return placed


def _text(grid: SpaceTime, program: Program, lowered: bool, json: bool) -> str:
    if lowered:
        return program_json(program) if json else program_text(program)
    if json:
        return json_text(grid)
    return grid_text(grid, shutil.get_terminal_size((100, 24)).columns)


def _trace(placed: Sequence | Program, program: Program) -> dict[str, object]:
    """The Chrome trace of a run as `check` makes it; a unit of its clock is a second."""
    from primepar.reference.check import memories
    from primepar.reference.emulator.executor import emulate

    sequence = placed if isinstance(placed, Sequence) else None
    return chrome_trace(emulate(program, memories(program), sequence).events)
