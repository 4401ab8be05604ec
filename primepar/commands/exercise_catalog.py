"""The exercises of `primepar exercise`: what they are, and what an answer must keep.

They are stored in `tutorials/exercises/broken`, and packaged through the link `broken` in this
folder. Of each there is a broken schedule, a program or a primitive, or a blank, which is functions
to fill in; the symptom as somebody would report it, with a hint; and a solution, in `fixed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from primepar.api.questions import verify_target
from primepar.api.target import COMMAND_LINE, AskedTarget, Target, resolve
from primepar.errors import TargetError
from primepar.partition.primitive_file import definitions, last_line
from primepar.schedule import Primitive, Program, Sequence

if TYPE_CHECKING:
    from primepar.commands.exercise_blanks import Blank
    from primepar.verify.report import Report

FOLDER = Path(__file__).resolve().parent / "broken"
PRIMITIVE = "Walk"
"""Class of the primitive in an exercise's Python file."""
QUESTIONS = (
    "ranks", "grid", "shape", "initial", "final", "host_initial", "host_final", "phases", "tensors",
    "memory", "traffic",
)  # fmt: skip
"""Fields of a program that define what is asked of it; an answer leaves them as they are."""
SIDES = (2, 3)
"""Lengths of sides on which an answer must cut as the exercise does."""


@dataclass(frozen=True)
class Exercise:
    """One broken schedule, or one blank."""

    number: int
    path: Path
    """The schedule: a program file, or a Python file with a primitive."""

    @cached_property
    def title(self) -> str:
        """One line that names the exercise."""
        return self._text.partition("\n")[0]

    @cached_property
    def symptom(self) -> str:
        """What somebody would report, or what is to be written, in a few sentences."""
        return self._text.partition("\n")[2].partition("Hint: ")[0].strip()

    @cached_property
    def hint(self) -> str:
        """Where to look."""
        return self._text.partition("Hint: ")[2].strip()

    @property
    def solution(self) -> Path:
        """A file that is right."""
        return FOLDER / "fixed" / self.path.name

    @cached_property
    def blank(self) -> Blank | None:
        """What its functions have to do; None of a schedule."""
        from primepar.commands.exercise_blanks import BLANKS

        return BLANKS.get(self.path.stem)

    @cached_property
    def _text(self) -> str:
        return self.path.with_suffix(".txt").read_text(encoding="utf-8")

    @cached_property
    def schedule(self) -> Program | Primitive | None:
        """The schedule, read; None of a blank."""
        if self.blank is not None:
            return None
        schedule = resolve(str(self.path) + f":{PRIMITIVE}" * (self.path.suffix == ".py"))
        assert isinstance(schedule, Program | Primitive)
        return schedule


def exercises() -> list[Exercise]:
    """All exercises, the schedules in the order in which the tutorials meet them."""
    paths = sorted(path for path in FOLDER.iterdir() if path.suffix in (".json", ".py"))
    return [Exercise(int(path.name[:2]), path) for path in paths]


def exercise_number(number: int) -> Exercise:
    """Find one exercise. Raises `TargetError` if there is none of that number."""
    known = exercises()
    if not 1 <= number <= len(known):
        raise TargetError(
            f"expected an exercise from 1 to {len(known)}, got {number}: "
            "primepar exercise lists them"
        )
    return known[number - 1]


def verify(schedule: Program | Primitive, target: str, timeout: float = 30.0) -> Report:
    """Verify a program as given, or a primitive for every side."""
    asked = AskedTarget(target, schedule, COMMAND_LINE)
    return verify_target(asked, None, False, timeout, None, None)[0]


def unfilled(blank: Blank, file: str) -> str | None:
    """State what is wrong with the functions of a file first; None if nothing is.

    Raises `TargetError` for a file without them, or in which one of them raises.
    """
    defined = definitions(file)
    functions = [defined.get(name) for name in blank.functions]
    for name, function in zip(blank.functions, functions, strict=True):
        if not callable(function):
            raise TargetError(
                f"{file}: expected a function {name}, got none: write def {name}(...)"
            )
    try:
        return next(blank.wrong(*functions), None)
    except Exception as error:
        line = last_line(error, file)
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if not line:
            return f"expected what the docstrings ask for, got {what}"
        raise TargetError(f"{file}:{line}: expected functions that return, got {what}") from None


def other_work(exercise: Exercise, answer: Target) -> str | None:
    """State where an answer does other work than its exercise asks; None if it does the same.

    A program must keep `QUESTIONS`; a primitive its axes and, on meshes with sides of `SIDES`, its
    steps and the slices of each dim, and homes only where that has them.
    """
    asked = exercise.schedule
    changes: Iterable[tuple[str, object, object]]
    if isinstance(asked, Program) and isinstance(answer, Program):
        changes = ((field, getattr(asked, field), getattr(answer, field)) for field in QUESTIONS)
    elif isinstance(asked, Primitive) and isinstance(answer, Primitive):
        changes = _primitive_changes(asked, answer)
    else:
        kind = "program" if isinstance(asked, Program) else "primitive"
        raise TargetError(
            f"exercise {exercise.number}: expected a {kind} as the answer, got a "
            f"{_kind_of(answer)}: start from what primepar exercise {exercise.number} "
            "-o FILE writes"
        )
    for what, before, after in changes:
        if before != after:
            return f"expected {what} as in the exercise, got it changed: put it back"
    return None


def _kind_of(answer: Target) -> str:
    return "primitive" if isinstance(answer, Primitive) else type(answer).__name__.lower()


def _primitive_changes(asked: Primitive, answer: Primitive) -> Iterator[tuple[str, object, object]]:
    yield "axes", asked.axis_sides, answer.axis_sides
    for lengths in product(SIDES, repeat=len(asked.side_names)):
        before, after = Sequence.of(asked, *lengths), Sequence.of(answer, *lengths)
        yield "the steps", before.steps, after.steps
        yield "the slices of each dim", before.grid, after.grid
        yield "the homes of tensors", before.has_homes, after.has_homes


def diagnosis_of(text: str) -> tuple[str, int | None, int | None]:
    """Read `PROPERTY[:RANK[,INSTRUCTION]]`. Raises `TargetError` if it is something else."""
    from primepar.verify.report import PROPERTIES

    name, *place = text.split(":", 1)
    numbers = place[0].split(",") if place else []
    are_numbers = all(number.isascii() and number.isdigit() for number in numbers)
    if name not in PROPERTIES or len(numbers) > 2 or not are_numbers:
        raise TargetError(
            f"--diagnose: expected PROPERTY[:RANK[,INSTRUCTION]] with a property out of "
            f"{', '.join(PROPERTIES)}, got {text!r}: write it like races:2,7"
        )
    rank, instruction = (*map(int, numbers), None, None)[:2]
    return name, rank, instruction


def misjudged(report: Report, diagnosis: str) -> str | None:
    """State why a diagnosis is not what the report has found, without naming what it has found.

    None if the property is refuted and, where they are given, its counterexample has the rank and
    the instruction of that rank. Raises `TargetError` if it is no diagnosis.
    """
    name, rank, instruction = diagnosis_of(diagnosis)
    result = next((known for known in report.properties if known.name == name), None)
    if result is None:
        return f"{name} is not asked of this schedule"
    if result.counterexample is None:
        return f"{name} is {result.verdict}"
    details = result.details
    events = details.events if details is not None else ()
    ranks = {*(details.ranks if details is not None else ()), *(event.rank for event in events)}
    if rank is None or (instruction is None and rank in ranks):
        return None
    # Of two that contradict each other either may be wrong; other events only lead to the wrong one
    either = details is not None and details.kind in ("waiting-cycle", "mismatch", "done-twice")
    wrong = {(event.rank, event.index) for event in events if event.wrong or either}
    if instruction is not None and (rank, instruction) in wrong:
        return None
    where = f"rank {rank}" + ("" if instruction is None else f", instruction {instruction}")
    return f"{name} it is, but its counterexample does not name {where}"
