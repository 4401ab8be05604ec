"""A linear operator of a partitioned model: the program that its sequence is lowered to.

Legend: M rows, N input hidden, K output hidden.
"""

from __future__ import annotations

from functools import lru_cache

from primepar.models import Operator
from primepar.plan.layouts import table_edge, weight_layout
from primepar.reference.blocks import Memory
from primepar.reference.partitioned_devices import Blocks, joined, named
from primepar.reference.partitioned_step import Step
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.lowering import lower
from primepar.schedule.operators import Linear, Phase
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence


class PartitionedLinear:
    """O = I W + bias; I and W stay where forward left them until backward."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.name = step, operator.name
        self.ends = step.ends(self.name)
        self.weights = weight_layout(step.plan, self.name)
        self.sequence = step.plan.sequence(self.name)
        columns = step.vocabulary if self.name == "head" else operator.K
        self.operator = Linear(M=step.rows, N=operator.N, K=columns)
        self.biases = step.parameters.get(f"{self.name}.bias")
        self.table = table_edge(step.plan) if self.name == "head" else None

    def forward(self, *inputs: Blocks) -> Blocks:
        """Give O, with its bias."""
        (x,) = inputs
        given: list[Memory] = [{} for _ in x]
        self._put(given, "I", x, self.ends.input)
        self._put(given, "W", self._weight(), self.weights)
        self.left = self._run(given, ("forward",))
        outputs = [joined("O", held) for held in self.left]
        if self.biases is None:
            return outputs
        return [y_MK + bias_K for y_MK, bias_K in zip(outputs, self.biases, strict=True)]

    def backward(self, dy: Blocks) -> tuple[Blocks, ...]:
        """Give dI; dW comes whole out of its program."""
        if self.biases is not None:
            self.step.add_gradient(f"{self.name}.bias", [dy_MK.sum(axis=0) for dy_MK in dy])
        self._put(self.left, "dO", dy, self.ends.output)
        found = self._run(self.left, ("backward", "gradient"))
        self._give_weight([joined("dW", held) for held in found])
        return ([joined("dI", held) for held in found],)

    def _put(self, memories: list[Memory], tensor: str, blocks: Blocks, layout: Layout) -> None:
        """Lay the blocks of a tensor into memories, cut as finely as the sequence cuts."""
        cuts = self.sequence.grid
        dims = {"I": (cuts["M"], cuts["N"]), "W": (cuts["N"], cuts["K"])}
        cells = Cells.even(dims.get(tensor, (cuts["M"], cuts["K"])))
        for rank, (memory, block) in enumerate(zip(memories, blocks, strict=True)):
            memory.update(named(tensor, block, layout, rank, cells))

    def _run(self, memories: list[Memory], phases: tuple[Phase, ...]) -> list[Memory]:
        program = _lowered(self.sequence, self.operator, phases)
        return self.step.devices.run(program, memories, self.sequence)

    def _weight(self) -> Blocks:
        if self.table is None:
            return self.step.parameters[f"{self.name}.weight"]
        table, way = self.step.parameters["embedding.token"], self.table.forward
        moved = self.step.devices.redistributed(table, way.source, way.target)
        return [block_KN.T for block_KN in moved]

    def _give_weight(self, found: Blocks) -> None:
        if self.table is None:
            self.step.gradients[f"{self.name}.weight"] = found
            return
        way, turned = self.table.backward, [block_NK.T for block_NK in found]
        moved = self.step.devices.redistributed(turned, way.source, way.target)
        self.step.gradients["embedding.token"] = moved


@lru_cache(maxsize=1024)
def _lowered(sequence: Sequence, operator: Linear, phases: tuple[Phase, ...]) -> Program:
    return lower(sequence, operator, phases)
