"""Decides which messages of a program belong to linear operators."""

from __future__ import annotations

from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.program import Collective, IRecv, ISend, Recv, Send


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

    def is_linear(self, node: Send | Recv | ISend | IRecv | Collective, block: str) -> bool:
        """Return whether a message with this block belongs to a linear operator."""
        if isinstance(node, ISend | IRecv) and self._operators - {""}:
            name = node.request.partition(" ")[0]
            return name in self._operators or self._is_operand(name)
        return self._is_operand(block)

    def _is_operand(self, block: str) -> bool:
        return self._real(block.rstrip("'").rpartition("[")[0]) in self._tensors
