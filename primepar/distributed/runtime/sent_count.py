"""Elements that one rank sends in a run, of linear operators and of the rest."""

from __future__ import annotations

from fractions import Fraction

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.ledger import sends
from primepar.schedule.program import Instruction, IRecv, ISend


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

    def is_linear(self, node: Instruction, block: str) -> bool:
        """Return whether a message with this block belongs to a linear operator."""
        if isinstance(node, ISend | IRecv) and self._operators - {""}:
            name = node.request.partition(" ")[0]
            return name in self._operators or self._is_operand(name)
        return self._is_operand(block)

    def _is_operand(self, block: str) -> bool:
        return self._real(block.rstrip("'").rpartition("[")[0]) in self._tensors


def sent_by(
    instructions: tuple[Instruction, ...], mesh: Mesh, shapes: Shapes, kind: str
) -> list[tuple[str, Fraction, int]]:
    """Return (kind of work, elements that this rank sends, bytes of each).

    The kind is "linear" for linear operators, else `kind`.
    """
    labels, sent = Labels(shapes), dict[tuple[str, int], Fraction]()
    for node in instructions:
        for block, times in sends(node, mesh.rank):
            dtype = mesh.wide_dtype if shapes.wide(block) else mesh.dtype
            key = "linear" if labels.is_linear(node, block) else kind, dtype.itemsize
            sent[key] = sent.get(key, Fraction(0)) + times * shapes.elements(block)
    return [(work, elements, itemsize) for (work, itemsize), elements in sent.items()]
