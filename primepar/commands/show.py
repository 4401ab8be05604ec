"""`primepar show`: the space-time grid of a schedule as text, picture or trace; or a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from primepar.api.drawings import (
    emulated_events,
    grid_drawing,
    grid_of,
    method_drawing,
    method_events,
    plan_drawing,
)
from primepar.api.target import COMMAND_LINE, OF_A_METHOD, OF_A_PLAN, AskedTarget, TrainingStep
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    SideOption,
    file_option,
    json_text,
)
from primepar.errors import TargetError
from primepar.files import check_ending, write_text
from primepar.pictures.drawing import Drawing
from primepar.pictures.timeline import chrome_trace
from primepar.plan import Plan, save_plan
from primepar.plan.description import describe
from primepar.schedule import Program, Sequence, program_text, save_program
from primepar.schedule.events import Event
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
        file_option(
            "Write the picture (.svg), the Chrome trace of an emulated run (.json) or, "
            "with --program, the program (.json); of a plan, its picture or the plan (.json).",
            "--output",
            "-o",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        file_option(
            "Write one page that moves: blocks that fly, a map to edit. It needs no network.",
            "--html",
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
    asked = AskedTarget(target, resolved, COMMAND_LINE)
    if isinstance(resolved, Plan):
        asked.refuse(OF_A_PLAN, side=side, phase=phase)
        if passes:
            _show_passes(target, making.step(resolved), output, program, json)
        elif program:
            _check_output(output, program)
            step = making.step(resolved)
            _show_program(step.program, output, json, f": {step}")
        else:
            check_ending("--output", output, json="the plan", svg="the picture")
            plan = resolved
            _show_drawing(
                lambda: plan_drawing(plan), lambda: describe(plan), partial(save_plan, plan),
                output, json,
            )  # fmt: skip
        return
    if isinstance(resolved, ProgramMethod) and not (passes or program):
        _check_output(output, program)
        asked.refuse(OF_A_METHOD, side=side, phase=phase)
        method = resolved
        _show_drawing(
            lambda: method_drawing(method),
            lambda: {"target": method.text, "facts": method.facts()},
            lambda path: _write_trace(method_events(method), path), output, json,
        )  # fmt: skip
        return
    if passes:
        raise TargetError(
            f"{target}: expected a plan with --passes, as they are of the program of a training "
            "step, got no plan: name one, such as megatron-sp with --model and --devices"
        )
    _check_output(output, program)
    lowered = asked.program(side, None, phase, None, None)
    if program:
        _show_program(lowered, output, json)
        return
    placed = asked.on_mesh(side)
    sequence = placed if isinstance(placed, Sequence) else None
    _show_drawing(
        lambda: grid_drawing(grid_of(target, placed, lowered, phase)),
        lambda: grid_of(target, placed, lowered, phase),
        lambda path: _write_trace(emulated_events(lowered, sequence), path), output, json,
    )  # fmt: skip


def _show_drawing(
    draw: Callable[[], Drawing], data: Callable[[], object], save: Callable[[Path], None],
    output: Path | None, json: bool,
) -> None:  # fmt: skip
    """A drawing as text, its data as JSON, or its picture into a file; `save` writes a `.json`."""
    if output is None:
        typer.echo(json_text(data()) if json else draw().text, nl=False)
        return
    if output.suffix == ".svg":
        write_text(output, draw().svg)
    else:
        save(output)
    typer.echo(f"wrote {output}")


def _write_trace(events: list[Event], path: Path) -> None:
    """Write the Chrome trace of a run as `check` makes it; a unit of its clock is a second."""
    write_text(path, json_text(chrome_trace(events)))


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
    check_ending("--html", page, html="")
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


def _show_program(program: Program, output: Path | None, json: bool, what: str = "") -> None:
    """A program as text, as JSON or into a file."""
    if output is not None:
        save_program(program, output)
        typer.echo(f"wrote {output}{what}")
    else:
        typer.echo(program_json(program) if json else program_text(program), nl=False)


def _check_output(output: Path | None, program: bool) -> None:
    if program:
        check_ending("--output", output, json="the program")
    else:
        check_ending("--output", output, svg="the picture", json="the trace")
