"""What a TARGET on the command line names: a primitive, a sequence, a program or a plan."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Mapping
from pathlib import Path

from primepar.errors import PrimitiveError, SequenceError, TargetError
from primepar.partition import PRIMITIVES, parse_sequence
from primepar.partition.registry import labelled
from primepar.plan.plan import Plan
from primepar.plan.plan_file import is_plan, load_plan
from primepar.plan.presets import PRESETS
from primepar.schedule import Primitive, Program, Sequence, load_program
from primepar.schedule.nesting import Nesting
from primepar.schedule.tracing import maps_of

Target = Primitive | Sequence | Program | Plan


def resolve(text: str) -> Target:
    """Find what `text` names: a registered name, `file.py:Class`, a `.json` file or `K,P2x2`.

    A file whose `format` is that of plans is one, any other a program. Raises `TargetError`,
    `PrimitiveError`, `ProgramError` or `PlanError`.
    """
    if text in PRIMITIVES:
        return PRIMITIVES[text]()
    if text.endswith(".json"):
        path = Path(text)
        return load_plan(path) if is_plan(path) else load_program(path)
    if ".py" in text:
        return load_primitive(text)
    if text.rpartition(",")[2] in PRESETS:
        raise TargetError(
            f"{text}: expected a model and a number of devices for a ready plan, got neither: "
            f"write {text} --model config.json --ranks 4, to show it or to verify it"
        )
    try:
        return parse_sequence(text)
    except SequenceError as error:
        raise TargetError(
            f"expected a registered name ({', '.join(PRIMITIVES)}), file.py:Class, program.json "
            f"or a sequence like K,P2x2, got {text!r} ({error})"
        ) from None


def without_lengths(text: str) -> Nesting | None:
    """The sequence for every length that `text` names, like `M,P`; None if it names another target.

    Its members are labels without lengths, registered names and `file.py:Class`. Raises what
    `load_primitive` does.
    """
    tokens, file = [token.strip() for token in text.split(",")], text.partition(":")[0]
    alone = len(tokens) == 1 and (text in PRIMITIVES or ".py" in text)
    if alone or tokens[-1] in PRESETS or ("," in file and Path(file).is_file()):
        return None
    if not all(".py" in token or labelled(token) for token in tokens):
        return None
    members = (labelled(token) or load_primitive(token) for token in tokens)
    return Nesting(tuple(members), tuple(tokens))


def load_primitive(text: str) -> Primitive:
    """Load `file.py:Class`. Raises `TargetError` or, if the file raises, `PrimitiveError`."""
    file, _, name = text.partition(":")
    path = Path(file)
    if not path.is_file():
        raise TargetError(f"{file}: expected a Python file, found none: check the path")
    try:
        namespace = runpy.run_path(str(path), run_name=path.stem)
    except (Exception, SystemExit) as error:
        line = _last_line(error, str(path))
        raise PrimitiveError(
            f"{file}:{line}: expected a file that can be imported, "
            f"got {type(error).__name__}: {' '.join(str(error).split())}"
        ) from None
    found = {
        key: value
        for key, value in namespace.items()
        if isinstance(value, type) and issubclass(value, Primitive) and value is not Primitive
    }
    if name not in found:
        defined = ", ".join(f"{file}:{key}" for key in found) or "no subclass of primepar.Primitive"
        raise TargetError(f"{text}: expected file.py:Class with a primitive, got {defined}")
    return primitive_of(text, found[name])


def primitive_of(text: str, kind: type[Primitive]) -> Primitive:
    """Make the primitive of a class that messages call `text`. Raises `PrimitiveError`."""
    try:
        primitive = kind()
    except Exception as error:
        raise PrimitiveError(
            f"{text}: expected a class that can be called without arguments, "
            f"got {type(error).__name__}: {error}"
        ) from None
    try:
        axes = primitive.axes
    except Exception as error:
        raise PrimitiveError(
            f"{text}: expected axes that can be read, got {type(error).__name__}: {error}"
        ) from None
    _check_axes(text, axes)
    maps_of(primitive)
    return primitive


def _check_axes(text: str, axes: object) -> None:
    """Raise `PrimitiveError` unless axes are names, or a mapping from names to names of sides."""
    names = [*axes, *axes.values()] if isinstance(axes, Mapping) else axes
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise PrimitiveError(
            f'{text}: expected axes like ("r", "c") or {{"r": "q", "e": "d"}}, got {axes!r}'
        )


def _last_line(error: BaseException, path: str) -> int:
    """Line of `path` where the error arose."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == path), 0)
