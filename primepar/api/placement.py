"""A target on a mesh: the lengths of its sides, the shape of its operator, and what it refuses.

The command line and Python ask the same, and spell options in their own way: `--side 2`, `side=2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from primepar.api.resolve_target import Target
from primepar.errors import ShapeError, TargetError
from primepar.plan.plan import Plan
from primepar.schedule import Linear, Primitive, Program, Sequence
from primepar.schedule.program_method import ProgramMethod

MOST_DEVICES = 4096
"""Largest mesh that is unrolled device by device."""
Side = int | str | tuple[int, ...]
"""Length of a mesh's side; one for each side where there are several: `(2, 3)` or `"2,3"`."""
Shape = Linear | str | tuple[int, ...]
"""Elements of an operator's dims: `(M, N, K)`, `(B, M, N, K)`, or the same as text."""


@dataclass(frozen=True)
class Spelling:
    """How messages write an option and its value: `--side 2,3`, or `side=(2, 3)`."""

    command_line: bool

    def name(self, option: str) -> str:
        """The option alone, `--side` or `side`."""
        return f"--{option}" if self.command_line else option

    def given(self, option: str, value: object) -> str:
        """The option with a value; on the command line a flag is alone."""
        if not self.command_line:
            return f"{option}={value!r}"
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return self.name(option) if value is True else f"{self.name(option)} {text}"


COMMAND_LINE, PYTHON = Spelling(command_line=True), Spelling(command_line=False)


def on_mesh(
    name: str, target: Target, side: Side | None, spelling: Spelling = PYTHON
) -> Sequence | Program:
    """Put a primitive on a mesh; return a sequence or a program as it is, and a method's program.

    Raises `TargetError` if the side is missing, is no length, or does not apply to the target.
    """
    if isinstance(target, Plan):
        raise TargetError(f"{name}: expected a primitive, a sequence or a program, got a plan")
    if isinstance(target, Primitive):
        placed: Sequence | Program = Sequence.of(target, *_lengths(name, target, side, spelling))
    elif side is not None:
        raise refused(name, f"as a {_kind(target)} has its own mesh", "side", side, spelling)
    elif isinstance(target, ProgramMethod):
        placed = target.program()
    else:
        placed = target
    if isinstance(placed, Sequence) and prod(placed.axis_lengths) > MOST_DEVICES:
        raise TargetError(
            f"{name}: expected at most {MOST_DEVICES} devices to unroll, got "
            f"{prod(placed.axis_lengths)}: take a smaller mesh"
        )
    return placed


def _kind(target: Target) -> str:
    if isinstance(target, ProgramMethod):
        return "method"
    return "sequence" if isinstance(target, Sequence) else "program"


def refused(
    name: str, reason: str, option: str, value: object, spelling: Spelling = PYTHON
) -> TargetError:
    """The error for an option that does not apply to a target."""
    return TargetError(
        f"{name}: expected no {spelling.name(option)}, {reason}, got "
        f"{spelling.given(option, value)}: leave it out"
    )


def operator_of(shape: Shape, spelling: Spelling = PYTHON) -> Linear:
    """The operator of a shape. Raises `ShapeError`."""
    if isinstance(shape, Linear):
        return shape
    parts = shape.split(",") if isinstance(shape, str) else list(map(str, shape))
    parts = [part.strip() for part in parts]
    if len(parts) not in (3, 4) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ShapeError(
            f"{spelling.name('shape')}: expected M,N,K or B,M,N,K, got {shape!r}: write it like "
            f"{spelling.given('shape', (8, 8, 8))}"
        )
    *batch, M, N, K = map(int, parts)
    return Linear(M, N, K, *batch)


def no_shape(name: str, shape: Shape | None, spelling: Spelling = PYTHON) -> TargetError:
    """The error for a shape given together with a program."""
    return TargetError(
        f"{name}: expected no {spelling.name('shape')}, as a program names its own, got "
        f'{spelling.given("shape", shape)}: write it into the file, "shape": {{"M": 4, "N": 4, '
        '"K": 4}'
    )


def _lengths(
    name: str, primitive: Primitive, side: Side | None, spelling: Spelling
) -> tuple[int, ...]:
    names = primitive.side_names
    option = spelling.name("side")
    if not names:
        expected, example = f"no length, as {name} has no side", f"leave {option} out"
    else:
        several = len(names) > 1
        expected = (
            f"the length{'s' * several} of side{'s' * several} {', '.join(names)}, "
            f"{'each ' * several}1 or more"
        )
        lengths = tuple(2 + place for place in range(len(names)))
        example = f"write {spelling.given('side', lengths if several else 2)}"
    if side is None and names:
        raise TargetError(f"{name}: expected {expected}, got none: {example}")
    parts = _parts(side)
    if len(parts) != len(names) or not all(map(_is_length, parts)):
        raise TargetError(f"{option}: expected {expected}, got {side!r}: {example}")
    return tuple(map(int, parts))


def _parts(side: Side | None) -> list[str]:
    """The lengths as texts, whatever they are."""
    if side is None:
        return []
    parts = side.split(",") if isinstance(side, str) else side
    return [str(part).strip() for part in (parts if isinstance(parts, tuple | list) else [parts])]


def _is_length(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10 and int(part) > 0
