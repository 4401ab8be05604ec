"""Linear operators in a step: the program of the sequence, with a bias or the token table.

A linear operator computes with the blocks of its sequence. Its input is recut from the blocks of
the input layout, its output to those of the output layout.
"""

from __future__ import annotations

from dataclasses import replace

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.linear_products import Products, lowered
from primepar.operators.redistribution import held_after, indices, moved, reblocked
from primepar.operators.repeated_linear import RepeatedProducts
from primepar.operators.step_context import StepContext
from primepar.plan.layouts import table_edge
from primepar.schedule.operators import Linear
from primepar.schedule.program import Program


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
            step.wide_sums,
            frozenset(("dW",)) if step.shards and self.table is None else frozenset(),
            step.masters,
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
        with self.step.before():
            weight = self._weight()
        if self.step.repeats:
            self.repeated = RepeatedProducts(self.step, self.products, weight)
            done = self.repeated.forward()
        else:
            if self.table is None and not self.step.trains:
                self._copy_weight()
            done = self.products.take_in("forward")
        y = self.products.made(done, "O")
        y = reblocked(self.builder, y, self.space.cuts, f"{self.name}/O.whole")
        if self.bias is None:
            return y
        name, writes = f"{self.name}.bias", f"{self.name}[M,K]"
        return self.builder.compute(name, "bias.forward", self.space, (y, self.bias), writes)

    def _weight(self) -> View:
        """Return the weight before forward; a tied one is fetched from the embedding."""
        if self.table is None:
            return self.step.parameters[f"{self.name}.weight"]
        table, way = self.step.parameters["embedding.token"], self.table.forward
        cuts, name = self.products.cuts("W"), self.names["W"]
        view = moved(self.builder, table, way, cuts, name, shared=True)
        self.names["W"] = view.name
        return view

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
        if self.step.repeats:
            dx, dw = self.repeated.backward()
        else:
            done = products.take_in("backward", "gradient")
            dx, dw = products.made(done, "dI"), products.made(done, "dW")
        if self.table is None:
            self.step.gradients[f"{name}.weight"] = dw
        else:
            table = self.step.parameters["embedding.token"]
            with self.step.after():
                home = moved(builder, dw, self.table.backward, table.cuts, f"{name}/dW.home")
            self.step.gradients["embedding.token"] = replace(home, dims=table.dims)
        return (dx,)
