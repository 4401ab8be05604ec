"""Linear operators in a step: the program of the sequence, with a bias or the token table.

The blocks of a linear operator are those that its sequence computes with; its input and its output
come and go in the blocks of their layouts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from primepar.models.graph import Operator
from primepar.operators.builder import Cuts, View, even
from primepar.operators.context import StepContext
from primepar.operators.moves import held_after, indices, moved, reblocked, take_in
from primepar.plan.layouts import table_edge
from primepar.schedule.lowering import lower
from primepar.schedule.operators import PRODUCTS, Linear, Phase, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Signature

Phases = tuple[Phase, ...]


class LinearLowering:
    """O = I W, and plus a bias; a tied head fetches the token table and sends its gradient back."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder, self.name = step, step.builder, operator.name
        self.sequence = step.plan.sequence(self.name)
        columns = step.vocabulary if self.name == "head" else operator.K
        self.operator = Linear(M=step.rows, N=operator.N, K=columns)
        self.at = step.space(step.ends(self.name).output, columns)
        self.table = table_edge(step.plan) if self.name == "head" else None
        self.turned = frozenset(() if self.table is None else ("W", "dW"))
        """Tensors whose blocks are those of the table, (K, N)."""
        self.names = {each: f"{self.name}/{each}" for each in ("O", "dO", "dI", "W", "dW")}
        self.bias: View | None = None
        self.takes = self._cuts("I")
        self._given()

    def _given(self) -> None:
        """What of the parameters is the operator's own."""
        step, weight, bias = self.step, f"{self.name}.weight", f"{self.name}.bias"
        if self.table is None:
            self.names |= {"W": weight, "dW": f"{weight}.grad"}
            program = _lowered(self.sequence, self.operator, ("forward",))
            held = [indices(own, "W") for own in program.initial or ()]
            step.parameters[weight] = self.builder.new(weight, self._cuts("W"), held, ("N", "K"))
            self.builder.begin_with(step.parameters[weight])
        if bias in step.places:
            self.bias = step.given(bias, self.at, "K")

    def forward(self, *inputs: View) -> View:
        """Lower the product, and the bias once it is summed."""
        (x,) = inputs
        self.names["I"] = x.name
        if self.table is not None:
            table, way = self.step.parameters["embedding.token"], self.table.forward
            fetched = moved(self.builder, table, way, self._cuts("W"), self.names["W"], shared=True)
            self.names["W"] = fetched.name
        elif not self.step.trains:
            self._copy_weight()
        done = self._take_in("forward")
        y = reblocked(self.builder, self._made(done, "O"), self.at.cuts, f"{self.name}/O.whole")
        if self.bias is None:
            return y
        name, writes = f"{self.name}.bias", f"{self.name}[M,K]"
        return self.builder.compute(name, "bias.forward", self.at, (y, self.bias), writes)

    def _copy_weight(self) -> None:
        """Have forward move a copy of a weight that it does not leave where it was."""
        weight = self.step.parameters[f"{self.name}.weight"]
        forward = _lowered(self.sequence, self.operator, ("forward",))
        if held_after(forward, "W") != weight.held:
            name = f"{self.name}/W"
            copy = reblocked(self.builder, weight, weight.cuts, name, copy=True)
            self.names["W"] = copy.name

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower dI and dW; dW comes whole out of its program."""
        builder, name = self.builder, self.name
        if self.bias is not None:
            self.step.add_gradient(f"{name}.bias", "bias.gradient", self.at, [dy])
        self.names["dO"] = reblocked(builder, dy, self._cuts("O"), self.names["dO"]).name
        done = self._take_in("backward", "gradient")
        dx, dw = self._made(done, "dI"), self._made(done, "dW")
        if self.table is None:
            self.step.gradients[f"{name}.weight"] = dw
        else:
            table = self.step.parameters["embedding.token"]
            home = moved(builder, dw, self.table.backward, table.cuts, f"{name}/dW.home")
            self.step.gradients["embedding.token"] = replace(home, dims=table.dims)
        return (dx,)

    def _take_in(self, *phases: Phase) -> Program:
        """Append the program of some phases, with their signatures."""
        program = _lowered(self.sequence, self.operator, phases)
        take_in(self.builder, program, self.names, self.name, self.turned)
        for phase in phases:
            reads, writes = PRODUCTS[phase]
            *read, written = (self._template(tensor) for tensor in (*reads, writes))
            signature = Signature(tuple(read), written, kernel=f"linear.{phase}")
            self.builder.phases[f"{self.name}.{phase}"] = signature
            self.builder.grid[f"{self.name}.{phase}"] = dict(self.sequence.grid)
        return program

    def _made(self, program: Program, tensor: str) -> View:
        """What the program leaves of a tensor."""
        held = held_after(program, tensor)
        if tensor in self.turned:
            held = tuple(tuple(index[::-1] for index in own) for own in held)
        dims = self._dims(tensor) if tensor.endswith("W") else ("M", "K")
        return self.builder.new(self.names[tensor], self._cuts(tensor), held, dims)

    def _dims(self, tensor: str) -> tuple[str, ...]:
        dims = tuple(dim for dim in tensor_dims(tensor) if dim in self.sequence.grid)
        return dims[::-1] if tensor in self.turned else dims

    def _template(self, tensor: str) -> str:
        return f"{self.names[tensor]}[{','.join(self._dims(tensor))}]"

    def _cuts(self, tensor: str) -> Cuts:
        """Cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self._dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


@lru_cache(maxsize=1024)
def _lowered(sequence: Sequence, operator: Linear, phases: Phases) -> Program:
    return lower(sequence, operator, phases)
