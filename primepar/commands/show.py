"""`primepar show`: the space-time grid of a schedule as text, picture or trace; or a plan."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from primepar.api.drawings import emulated_events, grid_of, method_drawing, method_events
from primepar.api.target import COMMAND_LINE, OF_A_METHOD, AskedTarget, TrainingStep
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    SideOption,
    json_text,
    on_mesh,
    refuse_for_plan,
    show_plan,
)
from primepar.errors import TargetError
from primepar.files import write_text
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import SpaceTime, grid_text
from primepar.pictures.timeline import chrome_trace
from primepar.plan import Plan
from primepar.schedule import Program, Sequence, lower, program_text, save_program
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.program_file import program_json
from primepar.schedule.program_method import ProgramMethod


def show(
    target: PlanTargetArgument,
    side: SideOption = None,
    phase: Annotated[
        Literal["forward", "backward", "gradient"] | None,
        typer.Option(help="Draw only this phase.", show_default=False),
    ] = None,
    program: Annotated[
        bool, typer.Option("--program", help="Print the lowered program, to read, edit and verify.")
    ] = False,
    passes: Annotated[
        bool,
        typer.Option(
            "--passes",
            help="Print what each pass changes in the program of a plan's step.",
        ),
    ] = False,
    model: ModelOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = None,
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
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="Write one page that moves: blocks that fly, a map to edit. It needs no network.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draw a schedule: what each device multiplies at each step, and what moves.

    `I[0,0] -> 1` is a block that leaves for device 1 while the products of the step run. A plan is
    printed operator by operator: the sequence, the layouts of input and output, and what moves
    between them. Its program is that of a whole training step, after the passes of --passes.
    """
    making = Making(model, devices, batch, positions)
    resolved = making.resolved(target, step=program or passes)
    if html is not None:
        given = {"--phase": phase, "--program": program, "--passes": passes, "--output": output,
                 "--json": json}  # fmt: skip
        _show_page(target, resolved, side, html, given)
        return
    if isinstance(resolved, Plan):
        refuse_for_plan(target, {"--side": side, "--phase": phase})
        if passes:
            _show_passes(target, making.step(resolved), output, program, json)
        elif program:
            _check_output(output, program)
            _show_step(making.step(resolved), output, json)
        else:
            show_plan(resolved, output, json)
        return
    if isinstance(resolved, ProgramMethod) and not (passes or program):
        _check_output(output, program)
        AskedTarget(target, resolved, COMMAND_LINE).refuse(OF_A_METHOD, side=side, phase=phase)
        _show_method(resolved, output, json)
        return
    if passes:
        raise TargetError(
            f"{target}: expected a plan with --passes, as they are of the program of a training "
            "step, got no plan: name one, such as megatron-sp with --model and --devices"
        )
    _check_output(output, program)
    placed = on_mesh(target, resolved, side)
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


def _show_page(
    target: str, resolved: object, side: str | None, page: Path, given: Mapping[str, object]
) -> None:
    """Write the page of a target; it has every mesh of a map, so there is no `--side`."""
    from primepar.api.page_data import page_data
    from primepar.pictures.page_html import page_html

    more = next((option for option, value in given.items() if value), None)
    if more is not None:
        raise TargetError(
            f"{target}: expected --html alone, got {more}: leave one of them out, as the page has "
            "all phases"
        )
    if page.suffix != ".html":
        raise TargetError(f"--html: expected a name that ends with .html, got {page}")
    if isinstance(resolved, Plan):
        raise TargetError(
            f"{target}: expected a map, a method or a program with --html, got a plan: write "
            "--output FILE.svg"
        )
    if side is not None:
        raise TargetError(
            f"{target}: expected no --side, as the page has every mesh, got --side {side}: "
            "leave it out"
        )
    write_text(page, page_html(target, page_data(target, resolved)))
    typer.echo(f"wrote {page}")


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

    resolved = stages(step)
    typer.echo(
        json_text(resolved) if json else passes_text(f"{target}, {step}", resolved), nl=False
    )


def _show_method(method: ProgramMethod, output: Path | None, json: bool) -> None:
    """The facts and the timeline of a method, as text, as JSON or into a file."""
    if output is not None and output.suffix == ".json":
        write_text(output, json_text(chrome_trace(method_events(method))))
    elif output is not None:
        write_text(output, method_drawing(method).svg)
    elif json:
        typer.echo(json_text({"target": method.text, "facts": method.facts()}), nl=False)
    else:
        typer.echo(method_drawing(method).text, nl=False)
    if output is not None:
        typer.echo(f"wrote {output}")


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
            f"{name}: expected no --phase, as a program is shown as given, got --phase "
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
    sequence = placed if isinstance(placed, Sequence) else None
    return chrome_trace(emulated_events(program, sequence))
