"""Linear operators in a step: the program of the sequence, with a bias or the token table.

A linear operator computes with the blocks of its sequence. Its input is recut from the blocks of
the input layout, its output to those of the output layout.
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
    """One linear operator inlined into a program; `names` maps its tensors to names there.

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
        """Declare a tensor that the program makes, with the blocks that every rank ends with."""
        held = held_after(program, tensor)
        if tensor in self.turned:
            held = tuple(tuple(index[::-1] for index in indices) for indices in held)
        dims = self.dims(tensor) if tensor.endswith("W") else ("M", "K")
        return self.builder.new(self.names[tensor], self.cuts(tensor), held, dims)

    def dims(self, tensor: str) -> tuple[str, ...]:
        """Return the dims of a tensor's blocks, in their order in this program."""
        dims = tuple(dim for dim in tensor_dims(tensor) if dim in self.sequence.grid)
        return dims[::-1] if tensor in self.turned else dims

    def _template(self, tensor: str) -> str:
        return f"{self.names[tensor]}[{','.join(self.dims(tensor))}]"

    def cuts(self, tensor: str) -> Cuts:
        """Return the cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self.dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


class LinearLowering:
    """O = I W plus bias; a tied head fetches the token table, and sends its gradient back."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder, self.name = step, step.builder, operator.name
        columns = step.vocabulary if self.name == "head" else operator.K
        self.space = step.space(step.ends(self.name).output, columns)
        self.table = table_edge(step.plan) if self.name == "head" else None
        tensors = ("O", "dO", "dI", "W", "dW")
        self.names = {tensor: f"{self.name}/{tensor}" for tensor in tensors}
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
        """Declare the parameters of the operator: its weight (not a tied one) and its bias."""
        step, weight, bias = self.step, f"{self.name}.weight", f"{self.name}.bias"
        if self.table is None:
            self.names |= {"W": weight, "dW": f"{weight}.grad"}
            program = self._forward_program()
            held = [indices(blocks, "W") for blocks in program.initial or ()]
            view = self.builder.new(weight, self.products.cuts("W"), held, ("N", "K"))
            step.parameters[weight] = view
            self.builder.begin_with(view)
        if bias in step.places:
            self.bias = step.given(bias, self.space, "K")

    def _forward_program(self) -> Program:
        return lowered(self.products.sequence, self.products.operator, ("forward",))

    def forward(self, *inputs: View) -> View:
        """Lower the product, and the bias after the partial sums are reduced."""
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
        y = reblocked(self.builder, y, self.space.cuts, f"{self.name}/O.whole")
        if self.bias is None:
            return y
        name, writes = f"{self.name}.bias", f"{self.name}[M,K]"
        return self.builder.compute(name, "bias.forward", self.space, (y, self.bias), writes)

    def _copy_weight(self) -> None:
        """Let forward move a copy of the weight, if it ends with other blocks of W."""
        weight = self.step.parameters[f"{self.name}.weight"]
        if held_after(self._forward_program(), "W") != weight.held:
            name = f"{self.name}/W"
            copy = reblocked(self.builder, weight, weight.cuts, name, copy=True)
            self.names["W"] = copy.name

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower dI and dW; the program of dW ends with full sums."""
        builder, name, products = self.builder, self.name, self.products
        if self.bias is not None:
            self.step.add_gradient(f"{name}.bias", "bias.gradient", self.space, [dy])
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
    """Return the program of some phases of one linear operator; it is lowered once."""
    return lower(sequence, operator, phases)
