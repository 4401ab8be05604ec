"""Classes as a Python file for every command: `primepar check found.py:AlignedOOO --side 3`.

The maps are written as their expressions print themselves, so what is in the file is what was
proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from primepar.schedule.expression import text_of
from primepar.schedule.primitive import ANY
from primepar.schedule.tracing import Digits, maps_of
from primepar.search.run import SearchClass

_HEAD = '''"""Primitives that `primepar search` finds, each proved for every side."""

from primepar import ANY, Primitive, where
'''


def python_text(classes: Iterable[SearchClass]) -> str:
    """The text of a file with a class for each."""
    return _HEAD + "".join("\n\n" + "\n".join(_lines(entry)) + "\n" for entry in classes)


def _lines(entry: SearchClass) -> Iterator[str]:
    primitive, maps = entry.primitive, maps_of(entry.primitive)
    axes, sides = ", ".join(primitive.axis_sides), ", ".join(primitive.side_names)
    yield f"class {entry.name}(Primitive):"
    yield f'    """Sent per device: {entry.formula}."""'
    yield ""
    yield f"    axes = {primitive.axes!r}"
    if primitive.keeps:
        yield f"    keeps = {primitive.keeps!r}"
    if text_of(maps.steps) != primitive.side_names[0]:
        yield ""
        yield f"    def steps(self, {sides}):"
        yield f"        return {text_of(maps.steps)}"
    known: list[str] = []
    for phase, slices in maps.phases.items():
        text = _dict(slices)
        if phase == "forward" or text != known[0]:
            yield ""
            yield f"    def {phase}(self, {axes}, t, {sides}):"
            yield f"        return {text}"
        known.append(text)
    if maps.homes:
        yield ""
        yield f"    def home(self, tensor, {axes}, {sides}):"
        yield "        return {"
        yield from (
            f'            "{tensor}": {_dict(home)},' for tensor, home in maps.homes.items()
        )
        yield "        }[tensor]"


def _dict(slices: Digits) -> str:
    return f"dict({', '.join(f'{dim}={_index(index)}' for dim, index in slices.items())})"


def _index(digits: tuple[Any, ...]) -> str:
    texts = ["ANY" if digit is ANY else text_of(digit) for digit in digits]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
