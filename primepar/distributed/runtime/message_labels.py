"""Which of a program's messages are those of linear operators."""

from __future__ import annotations

from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.program import Collective, IRecv, ISend, Recv, Send


class Labels:
    """Separates the messages of linear operators from redistributions and all else.

    Linear operators send blocks that their products read or write. So does a redistribution, whose
    messages carry the name of what is moved in their request, not that of an operator.
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
        """Whether a linear operator sends a block so."""
        if isinstance(node, ISend | IRecv) and self._operators - {""}:
            return node.request.partition(" ")[0] in self._operators
        return self._real(block.rstrip("'").rpartition("[")[0]) in self._tensors
