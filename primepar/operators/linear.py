"""Linear operators in a step: the program of the sequence, with a bias or the token table.

The blocks of a linear operator are those that its sequence computes with; its input and its output
come and go in the blocks of their layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from primepar.models.graph import Operator
from primepar.operators.builder import Cuts, ProgramBuilder, View, even
from primepar.operators.redistribution import held_after, indices, moved, reblocked, take_in
from primepar.operators.step_context import StepContext
from primepar.plan.layouts import table_edge
from primepar.schedule.lowering import lower
from primepar.schedule.operators import PRODUCTS, Linear, Phase, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Signature

Phases = tuple[Phase, ...]


@dataclass(frozen=True)
class Products:
    """One linear operator taken into a program: `names` are what its tensors are called there.

    Blocks of `turned` tensors are (K, N) where those of the operator are (N, K).
    """

    builder: ProgramBuilder
    sequence: Sequence
    operator: Linear
    name: str
    names: dict[str, str]
    turned: frozenset[str] = frozenset()

    def take_in(self, *phases: Phase) -> Program:
        """Append the program of some phases, with their signatures."""
        program = lowered(self.sequence, self.operator, phases)
        take_in(self.builder, program, self.names, self.name, self.turned)
        for phase in phases:
            reads, writes = PRODUCTS[phase]
            *read, written = (self._template(tensor) for tensor in (*reads, writes))
            signature = Signature(tuple(read), written, kernel=f"linear.{phase}")
            self.builder.phases[f"{self.name}.{phase}"] = signature
            self.builder.grid[f"{self.name}.{phase}"] = dict(self.sequence.grid)
        return program

    def made(self, program: Program, tensor: str) -> View:
        """What the program leaves of a tensor that it makes."""
        held = held_after(program, tensor)
        if tensor in self.turned:
            held = tuple(tuple(index[::-1] for index in own) for own in held)
        dims = self.dims(tensor) if tensor.endswith("W") else ("M", "K")
        return self.builder.new(self.names[tensor], self.cuts(tensor), held, dims)

    def dims(self, tensor: str) -> tuple[str, ...]:
        """Dims of a tensor's blocks, in their order here."""
        dims = tuple(dim for dim in tensor_dims(tensor) if dim in self.sequence.grid)
        return dims[::-1] if tensor in self.turned else dims

    def _template(self, tensor: str) -> str:
        return f"{self.names[tensor]}[{','.join(self.dims(tensor))}]"

    def cuts(self, tensor: str) -> Cuts:
        """Cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self.dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


class LinearLowering:
    """O = I W, and plus a bias; a tied head fetches the token table and sends its gradient back."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder, self.name = step, step.builder, operator.name
        columns = step.vocabulary if self.name == "head" else operator.K
        self.at = step.space(step.ends(self.name).output, columns)
        self.table = table_edge(step.plan) if self.name == "head" else None
        self.names = {each: f"{self.name}/{each}" for each in ("O", "dO", "dI", "W", "dW")}
        self.products = Products(
            self.builder,
            step.plan.sequence(self.name),
            Linear(M=step.rows, N=operator.N, K=columns),
            self.name,
            self.names,
            frozenset() if self.table is None else frozenset(("W", "dW")),
        )
        self.bias: View | None = None
        self.takes = self.products.cuts("I")
        self._given()

    def _given(self) -> None:
        """What of the parameters is the operator's own."""
        step, weight, bias = self.step, f"{self.name}.weight", f"{self.name}.bias"
        if self.table is None:
            self.names |= {"W": weight, "dW": f"{weight}.grad"}
            program = self._forward_program()
            held = [indices(own, "W") for own in program.initial or ()]
            view = self.builder.new(weight, self.products.cuts("W"), held, ("N", "K"))
            step.parameters[weight] = view
            self.builder.begin_with(view)
        if bias in step.places:
            self.bias = step.given(bias, self.at, "K")

    def _forward_program(self) -> Program:
        return lowered(self.products.sequence, self.products.operator, ("forward",))

    def forward(self, *inputs: View) -> View:
        """Lower the product, and the bias once it is summed."""
        (x,) = inputs
        self.names["I"] = x.name
        if self.table is not None:
            table, way = self.step.parameters["embedding.token"], self.table.forward
            cuts, name = self.products.cuts("W"), self.names["W"]
            self.names["W"] = moved(self.builder, table, way, cuts, name, shared=True).name
        elif not self.step.trains:
            self._copy_weight()
        done = self.products.take_in("forward")
        y = self.products.made(done, "O")
        y = reblocked(self.builder, y, self.at.cuts, f"{self.name}/O.whole")
        if self.bias is None:
            return y
        name, writes = f"{self.name}.bias", f"{self.name}[M,K]"
        return self.builder.compute(name, "bias.forward", self.at, (y, self.bias), writes)

    def _copy_weight(self) -> None:
        """Have forward move a copy of a weight that it does not leave where it was."""
        weight = self.step.parameters[f"{self.name}.weight"]
        if held_after(self._forward_program(), "W") != weight.held:
            name = f"{self.name}/W"
            copy = reblocked(self.builder, weight, weight.cuts, name, copy=True)
            self.names["W"] = copy.name

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower dI and dW; dW comes whole out of its program."""
        builder, name, products = self.builder, self.name, self.products
        if self.bias is not None:
            self.step.add_gradient(f"{name}.bias", "bias.gradient", self.at, [dy])
        self.names["dO"] = reblocked(builder, dy, products.cuts("O"), self.names["dO"]).name
        done = products.take_in("backward", "gradient")
        dx, dw = products.made(done, "dI"), products.made(done, "dW")
        if self.table is None:
            self.step.gradients[f"{name}.weight"] = dw
        else:
            table = self.step.parameters["embedding.token"]
            home = moved(builder, dw, self.table.backward, table.cuts, f"{name}/dW.home")
            self.step.gradients["embedding.token"] = replace(home, dims=table.dims)
        return (dx,)


@lru_cache(maxsize=1024)
def lowered(sequence: Sequence, operator: Linear, phases: Phases) -> Program:
    """The program of some phases of one linear operator, lowered once."""
    return lower(sequence, operator, phases)
