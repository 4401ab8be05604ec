"""Sequences without lengths: primitives one inside the other, for every length of every side.

A nested device is a tuple of devices, one of each member. A nested step is a tuple of steps, of
which the innermost is fast, and a nested block is a tuple of blocks. So what holds for each member
holds for the tuple, with one addition: an inner member begins its steps again at each step of an
outer one. For example, in `P,P` with sides 2 the steps are (0, 0), (0, 1), (1, 0), (1, 1). From
(0, 1) to (1, 0) the inner P goes from its last step to its first, and its blocks must be there
again.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primepar.schedule.primitive import Primitive, Slices
from primepar.schedule.sequence import Element, Sequence, numbered
from primepar.schedule.tracing import maps_of

Sides = tuple[int, ...]


def as_member(primitive: Primitive, *, homes: bool) -> Primitive:
    """The primitive as a sequence reads it: without formulas, and with homes if others have some.

    Where it declares none, I and W stay where forward starts with them, and O where it ends.
    """
    kind = type(primitive)
    members: dict[str, Any] = {"sent": Primitive.sent, "held": Primitive.held}
    if homes and primitive.home is None:
        members["home"] = _at_first_use
    member = copy(primitive)
    member.__class__ = type(kind.__name__, (kind,), members)
    return member


def _at_first_use(primitive: Primitive, tensor: str, *args: Any) -> Slices:
    axes = len(primitive.axis_sides)
    device, sides = args[:axes], args[axes:]
    t = primitive.steps(*sides) - 1 if tensor == "O" else 0
    return primitive.forward(*device, t, *sides)


@dataclass(frozen=True)
class Nesting:
    """Primitives in order, outermost first, each on a mesh of any size.

    `names` is how messages name each.
    """

    members: tuple[Primitive, ...]
    names: tuple[str, ...]

    def of(self, sides: Sides) -> Sequence:
        """The sequence with these lengths, those of each member in turn."""
        elements, left = [], sides
        for member in self.members:
            count = len(member.side_names)
            elements.append(Element(member, left[:count]))
            left = left[count:]
        return Sequence(tuple(elements))

    @property
    def has_homes(self) -> bool:
        """Whether tensors return to declared homes, or stay where a phase leaves them."""
        return any(member.home is not None for member in self.members)

    @cached_property
    def read(self) -> tuple[Primitive, ...]:
        """The members as the sequence reads them: where one has homes, all have."""
        return tuple(as_member(member, homes=self.has_homes) for member in self.members)

    @cached_property
    def turns(self) -> tuple[bool, ...]:
        """Whether each member begins its steps again: if one outside of it has several.

        With resident layouts nothing depends on it: what a step needs is resident on some device.
        """
        several = [str(maps_of(member).steps) != "1" for member in self.members]
        return tuple(
            not self.has_homes and any(several[:place]) for place in range(len(self.members))
        )

    @cached_property
    def side_names(self) -> tuple[str, ...]:
        """Names of all sides, numbered where two members share a name."""
        return numbered([name for member in self.members for name in member.side_names])

    @property
    def scope(self) -> str:
        """What a proof is about, `every s1, s2 >= 1 (axes d: s1; r, c: s2)`."""
        if not self.side_names:
            return "one device"
        sides, axes = iter(self.side_names), iter(self._axes)
        along: dict[str, list[str]] = {}
        for member in self.members:
            names = dict(zip(member.side_names, sides, strict=False))
            for side in member.axis_sides.values():
                along.setdefault(names[side], []).append(next(axes))
        several = len(along) > 1
        listed = [", ".join(some) + f": {side}" * several for side, some in along.items()]
        word = "axis" if len(self._axes) == 1 else "axes"
        return f"every {', '.join(self.side_names)} >= 1 ({word} {'; '.join(listed)})"

    @property
    def _axes(self) -> tuple[str, ...]:
        return numbered([axis for member in self.members for axis in member.axis_sides])
