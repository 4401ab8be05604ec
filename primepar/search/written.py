"""Classes as a Python file for every command: `primepar check found.py:AlignedOOO --side 3`.

The maps are written as their expressions print themselves, so what is in the file is what was
proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from primepar.schedule.expression import text_of
from primepar.schedule.tracing import Digits, maps_of
from primepar.search.measures import formula_text
from primepar.search.run import SearchClass

_HEAD = '''"""Primitives that `primepar search` finds, each proved for every side."""

from primepar import Primitive, where
'''


def python_text(classes: Iterable[SearchClass]) -> str:
    """The text of a file with a class for each."""
    return _HEAD + "".join("\n\n" + "\n".join(_lines(entry)) + "\n" for entry in classes)


def _lines(entry: SearchClass) -> Iterator[str]:
    maps = maps_of(entry.primitive)
    yield f"class {entry.name}(Primitive):"
    yield f'    """Sent per device: {formula_text(entry.words)}, over s^2."""'
    yield ""
    yield f"    axes = {tuple(entry.primitive.axis_sides)!r}"
    known: list[str] = []
    for phase, slices in maps.phases.items():
        text = _dict(slices)
        if phase == "forward" or text != known[0]:
            yield ""
            yield f"    def {phase}(self, r, c, t, s):"
            yield f"        return {text}"
        known.append(text)
    if maps.homes:
        yield ""
        yield "    def home(self, tensor, r, c, s):"
        yield "        return {"
        yield from (
            f'            "{tensor}": {_dict(home)},' for tensor, home in maps.homes.items()
        )
        yield "        }[tensor]"


def _dict(slices: Digits) -> str:
    return f"dict({', '.join(f'{dim}={text_of(index[0])}' for dim, index in slices.items())})"
