"""Counts what a program sends, and decides which messages belong to linear operators."""

from __future__ import annotations

from fractions import Fraction

from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.program import Collective, IRecv, ISend, Message


class Labels:
    """Separates the messages of linear operators from redistributions and the rest.

    Linear operators send blocks that their products read or write. Redistributions send such blocks
    too; but the request of their messages names the tensor, not an operator or a block.
    """

    def __init__(self, shapes: Shapes) -> None:
        names = [name for name in shapes.meaning.phases if shapes.is_product(name)]
        products = [shapes.meaning.phases[name] for name in names]
        self._operators = {name.rpartition(".")[0] for name in names}
        self._real = shapes.meaning.real
        self._tensors = {
            self._real(template.tensor)
            for phase in products
            for template in (*phase.reads, phase.writes)
        }

    def is_linear(self, node: Message | Collective, block: str) -> bool:
        """Return whether a message with this block belongs to a linear operator."""
        if isinstance(node, ISend | IRecv) and self._operators - {""}:
            name = node.request.partition(" ")[0]
            return name in self._operators or self._is_operand(name)
        return self._is_operand(block)

    def _is_operand(self, block: str) -> bool:
        return self._real(block.rstrip("'").rpartition("[")[0]) in self._tensors


class SentCount:
    """Elements that one rank sends in a run, of linear operators and of the rest."""

    def __init__(self, places: MemoryPlaces) -> None:
        self._labels, self._places = Labels(places.shapes), places
        self._elements: dict[tuple[bool, int], Fraction] = {}
        """(whether a linear operator sends it, bytes per element) -> elements."""

    def add(self, node: Message | Collective, block: str, elements: Fraction) -> None:
        """Count elements that an instruction sends, in the dtype of a block."""
        key = self._labels.is_linear(node, block), self._places.dtype(block).itemsize
        self._elements[key] = self._elements.get(key, Fraction(0)) + elements

    def by_kind(self, kind: str) -> list[tuple[str, Fraction, int]]:
        """Return (kind, elements, bytes per element).

        The kind is "linear" for linear operators, else `kind`.
        """
        return [
            ("linear" if linear else kind, elements, itemsize)
            for (linear, itemsize), elements in self._elements.items()
        ]
