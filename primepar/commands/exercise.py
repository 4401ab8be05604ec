"""`primepar exercise`: broken schedules to diagnose and to fix, and functions to fill in."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.api.drawings import grid_drawing
from primepar.api.target import resolve
from primepar.commands.exercise_catalog import (
    PRIMITIVE,
    Exercise,
    exercise_number,
    exercises,
    misjudged,
    other_work,
    unfilled,
    verify,
)
from primepar.commands.options import file_option
from primepar.commands.verify import EXIT_CODES
from primepar.errors import TargetError
from primepar.files import check_ending, write_text
from primepar.pictures.space_time import space_time
from primepar.schedule import Primitive, Program, Sequence, load_program, lower
from primepar.schedule.matching import Matches
from primepar.schedule.program_file import instruction_text
from primepar.schedule.properties import HOLDS
from primepar.schedule.tracing import map_equations
from primepar.schedule.waits import WaitGraph, cycle_of

if TYPE_CHECKING:
    from primepar.verify.report import Report

RIGHT, WRONG = 0, 1


def exercise(
    number: Annotated[
        int | None, typer.Argument(metavar="N", help="Which exercise.", show_default=False)
    ] = None,
    answer: Annotated[
        str | None,
        typer.Argument(
            metavar="ANSWER",
            help="Your fixed program.json, file.py:Class where the exercise is a primitive, or "
            "file.py where functions are to be filled in.",
            show_default=False,
        ),
    ] = None,
    diagnose: Annotated[
        str | None,
        typer.Option(
            metavar="PROPERTY[:RANK[,INSTRUCTION]]",
            help="Check your diagnosis: a property that is refuted, a rank, and an instruction of "
            "it, counted from 0, that the counterexample names. Of a primitive, the property.",
            show_default=False,
        ),
    ] = None,
    hint: Annotated[bool, typer.Option("--hint", help="Print where to look.")] = False,
    solution: Annotated[
        bool, typer.Option("--solution", help="Print what a right answer changes.")
    ] = False,
    output: Annotated[
        Path | None,
        file_option("Write the broken schedule, to fix it.", "--output", "-o"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With -o: overwrite a file that exists.")
    ] = False,
) -> None:
    """List exercises, show one, or check your answer.

    The first are broken schedules with what users report of them, the others functions to fill in.

    An answer has to do the same work: of a program the mesh, the grid, the layouts at the start
    and at the end, and the bounds stay as they are. Ends with 0 if it is fixed or diagnosed, with
    1 if not, 3 if something is unknown.
    """
    asked = sum(value not in (None, False) for value in (answer, diagnose, output, hint, solution))
    if number is None and asked:
        raise TargetError(
            "expected the number of an exercise, got none: write primepar exercise 1 "
            "--diagnose races:0,3"
        )
    if asked > 1:
        raise TargetError(
            "expected one of ANSWER, --diagnose, --hint, --solution and --output, got more: ask "
            "one after another"
        )
    if force and output is None:
        raise TargetError("--force: expected -o FILE with it, got none: leave it out")
    if number is None:
        typer.echo("\n".join(f"{known.number:2}  {known.title}" for known in exercises()))
        return
    broken = exercise_number(number)
    if answer is not None:
        raise typer.Exit(_check(broken, answer))
    if diagnose is not None:
        raise typer.Exit(_diagnose(broken, diagnose))
    if hint:
        typer.echo(broken.hint)
    elif solution:
        typer.echo("\n".join(_solution(broken)))
    elif output is not None:
        _write(broken, output, force)
    else:
        typer.echo("\n".join(_task(broken)))


def _check(broken: Exercise, answer: str) -> int:
    if broken.blank is not None:
        wrong = unfilled(broken.blank, answer)
        typer.echo(f"exercise {broken.number}: " + (f"not yet\n  {wrong}" if wrong else "right"))
        return RIGHT if wrong is None else WRONG
    schedule = resolve(answer)
    other = other_work(broken, schedule)
    if other is not None:
        typer.echo(f"exercise {broken.number}: other work\n  {other}")
        return WRONG
    assert isinstance(schedule, Program | Primitive)
    report = verify(schedule, answer)
    fixed = report.verdict == "proved"
    typer.echo(f"exercise {broken.number}: {'fixed' if fixed else 'not yet'}")
    typer.echo("".join(f"{line}\n" for line in _left(report)), nl=False)
    return EXIT_CODES[report.verdict]


def _left(report: Report) -> Iterator[str]:
    """What is not proved of an answer."""
    for result in report.properties:
        if result.verdict not in HOLDS:
            yield f"  {result.name:17} {result.verdict}"
            detail = result.counterexample or result.reason or ""
            yield from (f"      {line}" for line in detail.splitlines())


def _solution(broken: Exercise) -> Iterator[str]:
    """The lines of a solution, or the instructions of a program that it changes."""
    schedule = broken.schedule
    if not isinstance(schedule, Program):
        yield broken.solution.read_text(encoding="utf-8").rstrip()
        return
    fixed = load_program(broken.solution)
    for rank, nodes in enumerate(zip(schedule.programs, fixed.programs, strict=True)):
        before, after = ([*map(instruction_text, side)] for side in nodes)
        if before != after:
            yield f"rank {rank}"
            # The first three lines of a diff name its files and the place
            yield from (
                f"  {line}" for line in [*unified_diff(before, after, n=1, lineterm="")][3:]
            )


def _diagnose(broken: Exercise, diagnosis: str) -> int:
    if broken.schedule is None:
        raise TargetError(
            f"exercise {broken.number}: expected a file with the functions filled in, got "
            f"--diagnose: primepar exercise {broken.number} -o FILE writes it"
        )
    wrong = misjudged(verify(broken.schedule, str(broken.path)), diagnosis)
    typer.echo(f"exercise {broken.number}: {wrong or 'diagnosed'}")
    return RIGHT if wrong is None else WRONG


def _write(broken: Exercise, output: Path, force: bool) -> None:
    check_ending("--output", output, **{broken.path.suffix[1:]: ""})
    if output.is_dir() or (output.exists() and not force):
        kind, advice = "file", ", or write --force to overwrite it"
        if output.is_dir():
            kind, advice = "folder", ""
        raise TargetError(
            f"--output: expected the name of a new file, got the {kind} {output}: take another "
            f"name{advice}"
        )
    write_text(output, broken.path.read_text(encoding="utf-8"))
    typer.echo(f"wrote {output}")


def _task(broken: Exercise) -> Iterator[str]:
    """The symptom, the picture, and what may be done next."""
    schedule = broken.schedule
    mine = answer = f"mine{broken.path.suffix}"
    yield f"{broken.number}. {broken.title}"
    yield f"\n{broken.symptom}\n"
    if isinstance(schedule, Program):
        if cycle_of(WaitGraph(Matches(schedule))) is None:  # else the picture is the diagnosis
            yield grid_drawing(space_time(schedule, f"{schedule.ranks} devices")).text
        yield from _instructions(schedule)
    elif isinstance(schedule, Primitive):
        yield from (f"{phase:9} {text}" for phase, text in map_equations(schedule).items())
        program = lower(Sequence.of(schedule, *(2 for _ in schedule.side_names)))
        yield "\n" + grid_drawing(space_time(program, f"{program.ranks} devices")).text
        answer = f"{mine}:{PRIMITIVE}"
    else:
        yield broken.path.read_text(encoding="utf-8")
    what, done = ("schedule, to fix it", "fix") if schedule else ("functions, to fill in", "answer")
    yield f"primepar exercise {broken.number} -o {mine}   writes the {what}"
    yield f"primepar exercise {broken.number} {answer}   checks your {done}"
    yield f"primepar exercise {broken.number} --hint   and --solution, when you need them"


def _instructions(program: Program) -> Iterator[str]:
    for rank, nodes in enumerate(program.programs):
        yield f"rank {rank}"
        for index, node in enumerate(nodes):
            yield f"  {index:2}  {instruction_text(node)}"
        if program.final is not None:
            yield f"  ends  {' '.join(program.final[rank])}"
        yield ""
