"""Ways to make a primitive wrong: its maps, its homes, the step of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

from primepar.schedule import Primitive, where
from primepar.schedule.operators import HOMES, PHASES, tensor_dims
from primepar.schedule.sequence import Element

Slices = dict[str, Any]
Edit = Callable[[str, Slices, tuple[Any, ...]], Slices]
"""(phase or tensor, its slices, coordinates and then what else the method takes) -> slices."""


class Edited(Primitive):
    """A primitive whose maps or homes are changed by a function."""

    def __init__(self, base: Primitive, maps: Edit | None = None, homes: Edit | None = None,
                 steps: Callable[..., tuple[Any, ...]] | None = None) -> None:  # fmt: skip
        self.base, self.maps, self.at_step = base, maps, steps
        self.axes: tuple[str, ...] | Mapping[str, str] = base.axes
        self.virtual = base.virtual
        self.label, self.keeps = base.label, base.keeps
        home = base.home
        if home is not None:
            edit = homes or _as_it_is
            self.home = lambda tensor, *given: edit(tensor, dict(home(tensor, *given)), given)

    def steps(self, *sides: Any) -> Any:
        return self.base.steps(*sides)

    def _called(self, phase: str, given: tuple[Any, ...]) -> Slices:
        if self.at_step is not None:
            given = self.at_step(phase, given)
        slices = dict(getattr(self.base, phase)(*given))
        return (self.maps or _as_it_is)(phase, slices, given)

    def forward(self, *given: Any) -> Slices:
        return self._called("forward", given)

    def backward(self, *given: Any) -> Slices:
        return self._called("backward", given)

    def gradient(self, *given: Any) -> Slices:
        return self._called("gradient", given)


def _as_it_is(_: str, slices: Slices, __: tuple[Any, ...]) -> Slices:
    return slices


@cache
def lengths(base: Primitive) -> dict[str, tuple[str, ...]]:
    """Dim -> the side that each of its digits is below."""
    names = base.side_names
    sides = tuple(range(2, 2 + len(names)))
    name_of = dict(zip(sides, names, strict=True))
    radices = Element(base, sides).radices
    return {dim: tuple(name_of[count] for count in counts) for dim, counts in radices.items()}


def moved(base: Primitive, slices: Slices, dim: str, place: int, by: Any, given: Any) -> Slices:
    """The slices with one digit further by some steps, round its side."""
    digits, names = _digits(slices, dim), base.side_names
    side = dict(zip(names, given[len(given) - len(names) :], strict=True))
    length = side[lengths(base)[dim][place]]
    out = tuple((d + by) % length if i == place else d for i, d in enumerate(digits))
    return {**slices, dim: out if len(out) > 1 else out[0]}


def offsets(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """One dim of one phase, or of all of them, is one slice further."""
    for phases in (*((phase,) for phase in PHASES), PHASES):
        for dim, digits in lengths(base).items():
            for place, by in product(range(len(digits)), (1, -1)):

                def edit(
                    phase: str, slices: Slices, given: Any, phases: Any = phases, dim: str = dim,
                    place: int = place, by: int = by,
                ) -> Slices:  # fmt: skip
                    if phase not in phases or place >= _count(slices, dim):
                        return slices
                    return moved(base, slices, dim, place, by, given)

                yield f"{' '.join(phases)}: {dim}[{place}] {by:+d}", Edited(base, edit)


def _digits(slices: Slices, dim: str) -> tuple[Any, ...]:
    index = slices.get(dim, ())
    return index if isinstance(index, tuple) else (index,)


def _count(slices: Slices, dim: str) -> int:
    """How many digits of a dim a map names."""
    return len(_digits(slices, dim))


def exchanged(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """Two dims of one phase, or of all, have each other's slices."""
    dims = list(lengths(base))
    for phases in (*((phase,) for phase in PHASES), PHASES):
        for one, other in [(a, b) for a in dims for b in dims if a < b]:

            def edit(
                phase: str, slices: Slices, given: Any, phases: Any = phases,
                one: str = one, other: str = other,
            ) -> Slices:  # fmt: skip
                if phase not in phases or not {one, other} <= set(slices):
                    return slices
                return {**slices, one: slices[other], other: slices[one]}

            yield f"{' '.join(phases)}: {one} and {other}", Edited(base, edit)


def late(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """The first device, or the first along one axis, is a step late; or all go backwards."""
    axes = len(base.axis_sides)
    choices = [tuple(range(axes)), *((axis,) for axis in range(axes))] if axes > 1 else [(0,)]
    for phases, only in product((*((phase,) for phase in PHASES), PHASES), choices):

        def slow(phase: str, given: Any, phases: Any = phases, only: Any = only) -> Any:
            count = base.steps(*given[axes + 1 :])
            lag: Any = 1
            for axis in only:
                lag = where(given[axis] == 0, lag, 0)
            t = (given[axes] + count - lag) % count
            return (*given[:axes], t, *given[axes + 1 :]) if phase in phases else given

        yield f"{' '.join(phases)}: axes {only}", Edited(base, steps=slow)
    for phases in (*((phase,) for phase in PHASES), PHASES):

        def back(phase: str, given: Any, phases: Any = phases) -> Any:
            t = base.steps(*given[axes + 1 :]) - 1 - given[axes]
            return (*given[:axes], t, *given[axes + 1 :]) if phase in phases else given

        yield f"{' '.join(phases)}: backwards", Edited(base, steps=back)


def collapsed(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """One digit of one phase, or of all, is always 0, or twice what it was."""
    for phases in (*((phase,) for phase in PHASES), PHASES):
        for dim, digits in lengths(base).items():
            for place, what in product(range(len(digits)), ("0", "twice")):

                def edit(
                    phase: str, slices: Slices, given: Any, phases: Any = phases, dim: str = dim,
                    place: int = place, what: str = what,
                ) -> Slices:  # fmt: skip
                    if phase not in phases or place >= _count(slices, dim):
                        return slices
                    digit = _digits(slices, dim)[place]
                    return moved(base, slices, dim, place, digit if what == "twice" else -digit,
                                 given)  # fmt: skip

                yield f"{' '.join(phases)}: {dim}[{place}] {what}", Edited(base, edit)


class Longer(Edited):
    """A primitive with more steps, or fewer."""

    def __init__(self, base: Primitive, more: int) -> None:
        super().__init__(base)
        self.more = more

    def steps(self, *sides: Any) -> Any:
        return where(self.base.steps(*sides) > -self.more, self.base.steps(*sides) + self.more, 1)


def lengthened(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """There is one step more, or one fewer."""
    yield "one step more", Longer(base, 1)
    yield "one step fewer", Longer(base, -1)


def homes(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """A home is one slice further, or the first slice, has dims exchanged, or leaves one out."""
    if base.home is None:
        return
    for tensor in HOMES:
        dims = [dim for dim in tensor_dims(tensor) if dim in lengths(base)]
        for dim, what in product(dims, ("further", "left out", "0")):

            def edit(
                name: str, slices: Slices, given: Any, tensor: str = tensor, dim: str = dim,
                what: str = what,
            ) -> Slices:  # fmt: skip
                if name != tensor or dim not in slices:
                    return slices
                if what == "left out":
                    return {other: index for other, index in slices.items() if other != dim}
                by = 1 if what == "further" else -_digits(slices, dim)[0]
                return moved(base, slices, dim, 0, by, given)

            yield f"home of {tensor}: {dim} {what}", Edited(base, homes=edit)

        def turn(name: str, slices: Slices, _: Any, tensor: str = tensor) -> Slices:
            if name != tensor or len(slices) < 2:
                return slices
            (one, a), (other, b) = slices.items()
            return {one: b, other: a}

        yield f"home of {tensor}: exchanged", Edited(base, homes=turn)


class WrongFormula(Edited):
    """A primitive with another formula of what it sends or holds."""

    def __init__(self, base: Primitive, name: str, change: Callable[..., Any]) -> None:
        super().__init__(base)
        self.name, self.change = name, change

    def sent(self, *sizes: Any) -> Any:
        return self._stated("sent", sizes)

    def held(self, *sizes: Any) -> Any:
        return self._stated("held", sizes)

    def _stated(self, name: str, sizes: tuple[Any, ...]) -> Any:
        formula = getattr(self.base, name)
        return self.change(formula, *sizes) if name == self.name else formula(*sizes)


AMOUNTS: dict[str, Callable[..., Any]] = {
    "twice": lambda formula, *sizes: 2 * formula(*sizes),
    "a block of I more": lambda formula, M, N, *rest: formula(M, N, *rest) + M * N,
    "M and K exchanged": lambda formula, M, N, K, *sides: formula(K, N, M, *sides),
    "N and K exchanged": lambda formula, M, N, K, *sides: formula(M, K, N, *sides),
    "of a longer mesh": lambda formula, M, N, K, s, *sides: formula(M, N, K, s + 1, *sides),
    "half": lambda formula, *sizes: formula(*sizes) / 2,
    "written otherwise": lambda formula, *sizes: (3 * formula(*sizes) - formula(*sizes)) / 2,
}


def amounts(base: Primitive) -> Iterator[tuple[str, Primitive]]:
    """The formula of what is sent or held is another one."""
    for name, (how, change) in product(("sent", "held"), AMOUNTS.items()):
        yield f"{name}: {how}", WrongFormula(base, name, change)


MAP_WAYS: dict[str, Callable[[Primitive], Iterator[tuple[str, Primitive]]]] = {
    "wrong offset": offsets,
    "exchanged dims": exchanged,
    "collapsed slices": collapsed,
    "wrong steps": lengthened,
    "device a step late": late,
    "wrong home": homes,
    "wrong formula": amounts,
}
"""What a mutant is called -> the changes of that way to a primitive."""
