"""What a TARGET on the command line names: primitive, sequence, method, program or plan."""

from __future__ import annotations

import re
import runpy
import traceback
from collections.abc import Mapping
from pathlib import Path

from primepar.errors import PrimitiveError, SequenceError, TargetError, nearest
from primepar.partition import METHODS, PRIMITIVES, parse_method, parse_sequence
from primepar.partition.registry import labelled
from primepar.plan.plan import Plan
from primepar.plan.plan_file import is_plan, load_plan
from primepar.plan.presets import PRESETS, names_preset
from primepar.schedule import Primitive, Program, Sequence, load_program
from primepar.schedule.nesting import Nesting
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.tracing import maps_of

_TOKEN = re.compile(r"[A-Z][a-z]?\d*(x\d+)*$|\w+\d+[xX;+ ]")
"""What looks like a primitive of a sequence, maybe misspelt."""
LONGEST_LETTERS = 3
"""Length of a string from which on it is one name of an axis, and not a letter for each."""
Target = Primitive | Sequence | ProgramMethod | Program | Plan


def resolve(text: str) -> Target:
    """Find what `text` names: a registered name, `file.py:Class`, a `.json` file or `K,P2x2`.

    The name of a method can have sizes, `gpipe:stages=4`. A file whose `format` is that of plans is
    one, any other a program. Raises `TargetError`, `PrimitiveError`, `MethodError`, `ProgramError`
    or `PlanError`.
    """
    if text in PRIMITIVES:
        return PRIMITIVES[text]()
    if text.endswith(".json"):
        path = Path(text)
        return load_plan(path) if is_plan(path) else load_program(path)
    if ".py" in text:
        return load_primitive(text)
    if names_preset(text):
        raise TargetError(
            f"{text}: expected a model and a number of devices for a preset plan, got neither: "
            f"write {text} --model config.json --devices 4, to show it or to verify it"
        )
    method = parse_method(text)
    if method is not None:
        return method
    if Path(text).is_dir() and text:
        raise TargetError(
            f"{text}: expected a file, got a directory: write file.py:Class, or the name of a file "
            "in it that ends with .json"
        )
    try:
        return parse_sequence(text)
    except SequenceError as error:
        raise _unknown(text, error) from None


def _unknown(text: str, error: SequenceError) -> TargetError:
    """The error for a text that names nothing: what it is near to, or what is wrong with it."""
    module, _, name = re.sub(r"[:.]+", ":", text).rpartition(":")
    for stem, kind in ((module, f":{name}"), (text, "")):
        if stem and Path(f"{stem}.py").is_file():
            return TargetError(f"{text}: expected file.py:Class, got no .py: write {stem}.py{kind}")
    known = {known.lower(): known for known in (*PRIMITIVES, *METHODS, *PRESETS)}
    near = known.get(text.lower(), "") or (
        "" if ": write" in str(error) else nearest(text, known.values()).removeprefix(": write ")
    )
    if near:
        return TargetError(f"expected the name of a primitive, got {text!r}: write {near}")
    if any(_TOKEN.match(token.strip()) for token in text.split(",")):
        return TargetError(str(error))
    return TargetError(
        "expected the name of a primitive, file.py:Class, program.json, or a sequence like K,P2x2, "
        f"got {text!r}: primepar list prints the names"
    )


def without_lengths(text: str) -> Nesting | None:
    """The sequence for every length that `text` names, like `M,P`; None if it names another target.

    Its members are labels without lengths, registered names and `file.py:Class`. Raises what
    `load_primitive` does.
    """
    tokens, file = [token.strip() for token in text.split(",")], text.partition(":")[0]
    alone = len(tokens) == 1 and (text in PRIMITIVES or ".py" in text)
    if alone or tokens[-1].partition(":")[0] in PRESETS or ("," in file and Path(file).is_file()):
        return None
    if not all(".py" in token or labelled(token) for token in tokens):
        return None
    members = (labelled(token) or load_primitive(token) for token in tokens)
    return Nesting(tuple(members), tuple(tokens))


def load_primitive(text: str) -> Primitive:
    """Load `file.py:Class`, or `file.py` with one primitive.

    Raises `TargetError` or, if the file raises, `PrimitiveError`.
    """
    file, _, name = text.partition(":")
    name = name.removeprefix(":")
    path = Path(file)
    if not path.is_file():
        raise TargetError(f"{file}: expected a Python file, {_other_file(path)}")
    try:
        namespace = runpy.run_path(str(path), run_name=path.stem)
    except (Exception, SystemExit) as error:
        line = _last_line(error, str(path))
        raise PrimitiveError(
            f"{file}:{line}: expected a file that can be imported, "
            f"got {type(error).__name__}: {' '.join(str(error).split())}{_install(error)}"
        ) from None
    return primitive_of(text, _class_of(text, file, name, namespace))


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


def _other_file(path: Path) -> str:
    """What there is instead of a Python file: a directory, or a file of a name that is near."""
    if path.is_dir():
        return f"got a directory: write {path}/file.py:Class"
    stem, ending, name = str(path).rpartition(".py")
    if name and Path(f"{stem}{ending}").is_file():
        return f"found none: write {stem}{ending}:{name.lstrip('.') if name[0] == '.' else 'Class'}"
    files = [str(file) for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return f"found none{nearest(str(path), files) or ': check the path'}"


def _class_of(text: str, file: str, name: str, namespace: Mapping[str, object]) -> type[Primitive]:
    """The class of that name, or the only primitive that a file defines. Raises `TargetError`."""
    kinds = {
        key: value
        for key, value in namespace.items()
        if isinstance(value, type) and issubclass(value, Primitive) and value is not Primitive
    }
    defined = {key: kind for key, kind in kinds.items() if kind.__module__ == Path(file).stem}
    if name in kinds or (not name and len(defined) == 1):
        return kinds[name or next(iter(defined))]
    if isinstance(namespace.get(name), type):
        raise TargetError(
            f"{text}: expected a class that derives from primepar.Primitive, got one that does "
            f"not: write class {name}(Primitive)"
        )
    if not kinds:
        raise TargetError(
            f"{text}: expected a class that derives from primepar.Primitive, got none in {file}: "
            f"write class {name or 'Mine'}(Primitive)"
        )
    choices = " or ".join(f"{file}:{key}" for key in defined or kinds)
    near = nearest(name, defined or kinds, f"{file}:") or f": write {choices}"
    got = f"no class {name}" if name else "several primitives" if len(defined) > 1 else "no name"
    raise TargetError(f"{text}: expected a primitive of {file}, got {got}{near}")


def _install(error: BaseException) -> str:
    """What to do about a module that is not there."""
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        return ": install it in this environment, or correct its name"
    return ""


def _check_axes(text: str, axes: object) -> None:
    """Raise `PrimitiveError` unless axes are names, or a mapping from names to names of sides."""
    names = [*axes, *axes.values()] if isinstance(axes, Mapping) else axes
    if not isinstance(names, tuple | list) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise PrimitiveError(
            f'{text}: expected axes like ("r", "c") or {{"r": "q", "e": "d"}}, got {axes!r}'
            f"{_as_tuple(axes)}"
        )


def _as_tuple(axes: object) -> str:
    """`: write ("r",)` for axes that are a string: one name, or a letter for each axis."""
    if not isinstance(axes, str) or not axes.isidentifier():
        return ""
    names = list(axes) if 1 < len(axes) < LONGEST_LETTERS else [axes]
    listed = ", ".join(f'"{name}"' for name in names) + "," * (len(names) == 1)
    return f": write ({listed})"


def _last_line(error: BaseException, path: str) -> int:
    """Line of `path` where the error arose."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == path), 0)
