"""Methods that are no map of slices: each builds its program from some sizes.

A pipeline, a tile schedule on the workers of one GPU, a period between averages or a chunked memory
distributes other things than the slices of one product. Such a method has sizes (stages and
micro-batches) with a default each, and a program for any sizes that fit together. The program
is emulated, proved, drawn, simulated and run like every other one.

A method is named with its sizes: `gpipe:stages=4,micro_batches=8`. A size that is left out has its
default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_args

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import FieldInfo, fields

from primepar.errors import MethodError, nearest
from primepar.schedule.program import Program


class ProgramMethod(Struct, frozen=True, kw_only=True, dict=True):
    """A method with sizes; subclasses define their sizes as fields, and `program`.

    The first line of a subclass's docstring is its summary. A `__post_init__` raises `MethodError`
    for sizes that do not fit together, after that of this class.
    """

    name: ClassVar[str] = ""
    """Its registered name."""
    untimed: ClassVar[frozenset[str]] = frozenset()
    """What takes no time in its timeline: last words of phases, and `transfer`."""

    def __post_init__(self) -> None:
        """Raise `MethodError` for a size beyond its bounds; msgspec checks only what it decodes."""
        for field in fields(type(self)):
            _value(self.name, field, getattr(self, field.name), strict=True)

    def program(self) -> Program:
        """Return the program of these sizes."""
        raise NotImplementedError(f"{type(self).__name__}: define program")

    def facts(self) -> dict[str, str]:
        """Return what is known of these sizes in closed form: name of a quantity -> its value."""
        return {}

    @classmethod
    def of(cls, sizes: Mapping[str, str]) -> Self:
        """Make the method of sizes as text; a size that is left out has its default.

        Raises `MethodError` for a size that the method does not have, or that does not fit.
        """
        known = [field.name for field in fields(cls)]
        for size in sizes:
            if size not in known:
                near = nearest(size, known) or ": leave it out"
                raise MethodError(
                    f"{cls.name}: expected sizes out of {', '.join(known)}, got {size!r}{near}"
                )
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in sizes:
                values[field.name] = _value(cls.name, field, sizes[field.name])
        return cls(**values)

    @property
    def sizes(self) -> dict[str, Any]:
        """Its sizes, in order."""
        return {field.name: getattr(self, field.name) for field in fields(type(self))}

    @property
    def text(self) -> str:
        """Its name with all sizes, `gpipe:stages=4,micro_batches=8`."""
        sizes = ",".join(f"{size}={value}" for size, value in self.sizes.items())
        return f"{self.name}:{sizes}" if sizes else self.name


def _value(method: str, field: FieldInfo, given: Any, strict: bool = False) -> Any:
    """Return a size, given as text unless `strict`. Raises `MethodError` for one out of bounds."""
    try:
        return msgspec.convert(given, field.type, strict=strict)
    except msgspec.ValidationError:
        raise MethodError(
            f"{method}: expected {field.name} to be {allowed(field.type)}, got {given!r}: "
            f"write {field.name}={field.default}"
        ) from None


def allowed(kind: Any) -> str:
    """State in words what a type with bounds allows: `an integer from 1 to 64`, `one of a, b`."""
    match inspect.type_info(kind):
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, get_args(kind)))}"  # in the order of the type
        case inspect.IntType(ge=low, le=None):
            return f"{low} or more"
        case inspect.IntType(ge=low, le=high):
            return f"an integer from {low} to {high}"
        case inspect.FloatType(gt=0):
            return "a positive number"
        case inspect.FloatType(ge=0, lt=1):
            return "a probability of at least 0 and below 1"
        case _:
            return "true or false"
