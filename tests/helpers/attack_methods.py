"""Right methods as text, to be changed and written out as Python classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PHASES = ("forward", "backward", "gradient")
HOMES = ("I", "W", "O")
Digits = tuple[str, ...]
"""An expression for each digit of a slice index."""
Written = Mapping[str, str | Digits]


@dataclass
class Body:
    """What one method does: assignments in order, then an expression for each digit of a dim."""

    slices: dict[str, list[str]]
    lines: list[str] = field(default_factory=list)

    def text(self, indent: str) -> str:
        """The statements, the last one a return."""
        named = ", ".join(f"{dim}={_index(digits)}" for dim, digits in self.slices.items())
        return "".join(f"{indent}{line}\n" for line in (*self.lines, f"return dict({named})"))


@dataclass
class Draft:
    """A primitive as text; `bodies` are those of the phases and, with homes, of I, W and O."""

    method: str
    axes: dict[str, str]
    """Axis -> side."""
    steps: str
    lengths: dict[str, Digits]
    """Dim -> how many slices each digit has."""
    bodies: dict[str, Body]
    any_order: tuple[str, ...]
    """Phases that may take their steps in any order."""
    keeps: tuple[str, ...] = ()

    @property
    def has_homes(self) -> bool:
        """Whether `home` gives the places where tensors rest."""
        return "I" in self.bodies

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the sides."""
        return tuple(dict.fromkeys(self.axes.values()))

    def source(self, name: str) -> str:
        """The Python file of a class."""
        sides = ", ".join(self.sides)
        given = ", ".join(("self", *self.axes, "t", *self.sides))
        text = f"class {name}(Primitive):\n    axes = {self._axes()}\n"
        text += f"    keeps = {self.keeps}\n" * bool(self.keeps)
        text += f"\n    def steps(self, {sides}):\n        return {self.steps}\n"
        for phase in PHASES:
            body = self.bodies[phase].text(" " * 8)
            if phase == "forward" or body != self.bodies["forward"].text(" " * 8):
                text += f"\n    def {phase}({given}):\n{body}"
        if self.has_homes:
            given = ", ".join(("self", "tensor", *self.axes, *self.sides))
            text += f"\n    def home({given}):\n"
            for tensor in HOMES[:-1]:
                text += f'        if tensor == "{tensor}":\n'
                text += self.bodies[tensor].text(" " * 12)
            text += self.bodies[HOMES[-1]].text(" " * 8)
        return "from primepar import ANY, Primitive, where\n\n\n" + text

    def _axes(self) -> str:
        return repr(tuple(self.axes) if self.sides == ("s",) else self.axes)


def _index(digits: list[str]) -> str:
    return digits[0] if len(digits) == 1 else f"({', '.join(digits)})"


def draft(
    method: str, axes: dict[str, str], steps: str, lengths: Written, *phases: Written,
    homes: tuple[Written, ...] = (), any_order: tuple[str, ...] = (),
) -> Draft:  # fmt: skip
    """A method from its maps, the last one for all phases that are left, and its homes if any."""
    maps = (*phases, *phases[-1:] * (3 - len(phases)))
    named = dict(zip((*PHASES, *HOMES), (*maps, *homes), strict=False))
    return Draft(
        method, axes, steps, {dim: _digits(index) for dim, index in lengths.items()},
        {name: Body({dim: list(_digits(index)) for dim, index in written.items()})
         for name, written in named.items()},
        PHASES if homes or steps == "1" else any_order,
    )  # fmt: skip


def _digits(index: str | Digits) -> Digits:
    return (index,) if isinstance(index, str) else index


SQUARE = {"r": "s", "c": "s"}
ONE: Written = dict(M="s", N="s", K="s")


def _square(method: str, m: str, n: str, k: str, i: str, w: str, o: str) -> Draft:
    """One map for all phases on s x s devices; homes as `M N`, `N K` and `M K`, split at `;`."""
    homes: list[Written] = [dict(zip(dims, text.split("; "), strict=True))
             for dims, text in (("MN", i), ("NK", w), ("MK", o))]  # fmt: skip
    return draft(method, SQUARE, "s", ONE, dict(M=m, N=n, K=k), homes=tuple(homes))


def _primepar(side: str, **first: str) -> tuple[Written, ...]:
    """The maps of PrimePar, some dims with a first digit before its own."""
    last = f"where(t == {side} - 1, 1, 0)"
    maps = (
        dict(M="r", N=f"(r + c + t) % {side}", K="c"),
        dict(M="r", N=f"(r + c - 1) % {side}", K=f"(c + t) % {side}"),
        dict(M=f"(r + t) % {side}", N=f"(r + c - 1 + {last}) % {side}",
             K=f"(c - 1 + {last}) % {side}"),
    )  # fmt: skip
    return tuple(
        {dim: (first[dim], digit) if dim in first else digit for dim, digit in layout.items()}
        for layout in maps
    )


FREE = ("forward", "backward")
"""Phases in which PrimePar has every block on some device at every step."""
LAYERS = {"r": "q", "c": "q", "e": "d"}
TABLE = [
    draft("primepar", SQUARE, "s", ONE, *_primepar("s"), any_order=FREE),
    draft("primepar-layers", LAYERS, "q", dict(M=("d", "q"), N="q", K="q"),
          *_primepar("q", M="e"), any_order=FREE),
    draft("primepar-wide", LAYERS, "q", dict(M="q", N=("d", "q"), K="q"),
          *_primepar("q", N="e"), any_order=FREE),
    draft("travelling", SQUARE, "s", ONE,
          dict(M="(r + c + t) % s", N="r", K="c"),
          dict(M="(r + c + t - 1) % s", N="r", K="c"),
          dict(M="(r + c + t - 2) % s", N="r", K="c")),
    _square("summa", "r", "t", "c", "r; c", "r; c", "r; c"),
    _square("output-stays", "r", "(r + c + t) % s", "c",
            "r; (r + c) % s", "(r + c) % s; c", "r; c"),
    _square("input-stays", "r", "c", "(r + c + t) % s",
            "r; c", "c; (r + c) % s", "r; (r + c) % s"),
    _square("weight-stays", "(r + c + t) % s", "r", "c",
            "(r + c) % s; r", "r; c", "(r + c) % s; c"),
    draft("tesseract", LAYERS, "q", dict(M=("d", "q"), N="q", K="q"),
          dict(M=("e", "r"), N="t", K="c"),
          homes=(dict(M=("e", "r"), N="c"), dict(N="r", K="c"), dict(M=("e", "r"), K="c"))),
    draft("three-d", dict.fromkeys("ijl", "s"), "1", dict(M=("s", "s"), N="s", K=("s", "s")),
          dict(M="i", N="l", K="j"),
          homes=(dict(M=("i", "j"), N=("l",)), dict(N=("l",), K=("j", "i")),
                 dict(M=("i", "l"), K=("j",)))),
    draft("summa-rectangular", {"r": "q", "a": "u", "c": "q", "b": "v"}, "q",
          dict(M=("q", "u"), N=("q", "u", "v"), K=("q", "v")),
          dict(M=("r", "a"), N="t", K=("c", "b")),
          homes=(dict(M=("r", "a"), N=("c", "ANY", "b")), dict(N=("r", "a"), K=("c", "b")),
                 dict(M=("r", "a"), K=("c", "b")))),
    draft("panels", {"r": "p", "c": "q"}, "p", dict(M=("p", "q"), N="p", K="q"),
          dict(M="r", N="t", K="c"),
          homes=(dict(M=("r", "c")), dict(N="r", K="c"), dict(M=("r", "c")))),
    draft("two-panels", {"r": "p", "c": "q"}, "2", dict(M="p", N="2", K="q"),
          dict(M="r", N="t", K="c"), homes=(dict(M="r"), dict(K="c"), dict(M="r", K="c"))),
    draft("sequence-column", {"d": "s"}, "1", dict(M="s", K="s"), dict(K="d"),
          homes=(dict(M="d"), dict(K="d"), dict(K="d"))),
    draft("sequence-row", {"d": "s"}, "1", dict(M="s", N="s"), dict(N="d"),
          homes=(dict(N="d"), dict(N="d"), dict(M="d"))),
    *(draft(f"by-{dim}", {"d": "s"}, "1", {dim: "s"}, {dim: "d"}) for dim in "BMNK"),
    *(draft(f"by-{one}{two}", {"a": "p", "b": "q"}, "1", {one: "p", two: "q"},
            {one: "a", two: "b"}) for one, two in ("MK", "NK", "BN", "MN")),
    *(draft(f"mixed-{''.join(dims)}", {"d": "s"}, "1", dict.fromkeys(dims, "s"),
            *({dim: "d"} for dim in dims)) for dims in ("NKN", "NMN", "NNM", "NKM", "KKM")),
    draft("by-digits", {"a": "p", "b": "q", "e": "p"}, "1", dict(M=("q", "p"), K="p"),
          dict(M=("b", "a"), K="e")),
]  # fmt: skip
METHODS = {row.method: row for row in TABLE}
"""All right methods; copy one before it is changed."""
SWITCHED = (
    ("summa", "output-stays", "input-stays", "weight-stays"),
    ("primepar",),
)
"""Methods of one shape: a threshold may choose between two of a group."""
