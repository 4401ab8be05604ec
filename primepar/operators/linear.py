"""Linear operators in a step: the program of the sequence, with a bias or the token table.

A linear operator computes with the blocks of its sequence. Its input is recut from the blocks of
the input layout, its output to those of the output layout.

In a step of micro-batches the products repeat (`RepeatedProducts`). A second forward may run before
the backward of the first, so each finds the weight at home: where a phase would move it, the phase
gets a copy, which is freed after it. The copy of backward comes from home by a redistribution
(ours; the alternative, keeping what forward left, takes one more weight per micro-batch in flight).

The gradient of the weight is summed over micro-batches. A sum that stays where it is computed is
accumulated there. An all-reduce at its end, of data parallelism, waits for the last micro-batch.
Any other sum that travels or is reduced (PrimePar's, SUMMA's) is finished for every micro-batch in
a scratch block, and added at its home: to keep SUMMA's partial panels instead would take as many
blocks as the mesh has rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as view_with
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from primepar.models.graph import Operator
from primepar.operators.builder import Cuts, Held, ProgramBuilder, View, even
from primepar.operators.redistribution import held_after, indices, moved, reblocked, take_in
from primepar.operators.step_context import StepContext
from primepar.passes.block_uses import Rank, RankList
from primepar.plan.layouts import Way, table_edge
from primepar.plan.operator_layouts import movement_of, part
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout, lower
from primepar.schedule.operators import (
    OUTPUTS,
    PRODUCTS,
    Linear,
    Phase,
    block_name,
    is_wide_sum,
    scratch_name,
    tensor_dims,
)
from primepar.schedule.program import AllReduce, Compute, Free, Instruction, Program
from primepar.schedule.sequence import Sequence
from primepar.schedule.signature import Signature

Phases = tuple[Phase, ...]


@dataclass(frozen=True)
class Products:
    """One linear operator inlined into a program; `names` maps its tensors to names there.

    Blocks of `turned` tensors are (K, N) where those of the operator are (N, K). With `wide_sums` a
    sum of several sub-operators is a wide tensor, `NAME.sum`, until it is complete. Then it is
    copied to the tensor of its name, which has the model's dtype; that of a tensor in `stay_wide`
    is not. With `spends_weight` nobody needs W after backward.
    """

    builder: ProgramBuilder
    sequence: Sequence
    operator: Linear
    name: str
    names: dict[str, str]
    turned: frozenset[str] = frozenset()
    wide_sums: bool = False
    stay_wide: frozenset[str] = frozenset()
    spends_weight: bool = False

    def take_in(self, *phases: Phase) -> Program:
        """Append the program of some phases, with their signatures."""
        program = lowered(self.sequence, self.operator, phases, self.spends_weight)
        self.append(program, phases)
        return program

    def append(self, program: Program, phases: Phases, apart: frozenset[str] = frozenset()) -> None:
        """Append a program of these phases; blocks of tensors `apart` are scratch blocks."""
        names = {tensor: self.written(tensor) for tensor in self.names}
        take_in(self.builder, program, names, self.name, self.turned, apart)
        for phase in phases:
            reads, writes = PRODUCTS[phase]
            read = tuple(self._template(tensor, self.names[tensor]) for tensor in reads)
            written = self._template(writes, self.written(writes))
            signature = Signature(read, written, kernel=f"linear.{phase}")
            self.builder.phases[f"{self.name}.{phase}"] = signature
            self.builder.grid[f"{self.name}.{phase}"] = dict(self.sequence.grid)

    def made(self, program: Program, tensor: str) -> View:
        """Declare a tensor that the program makes, with the blocks that every rank ends with."""
        return self.rounded(self.summed(program, tensor), tensor)

    def summed(self, program: Program, tensor: str) -> View:
        """Declare a tensor that the program makes, before it is `rounded`."""
        held = self.held(program.final or (), tensor)
        dims = self.dims(tensor) if tensor.endswith("W") else ("M", "K")
        name = self.written(tensor)
        return self.builder.new(name, self.cuts(tensor), held, dims, self._is_wide(tensor))

    def rounded(self, view: View, tensor: str) -> View:
        """Append the copy of a wide sum to its tensor; other tensors are returned unchanged."""
        if not self._is_wide(tensor) or tensor in self.stay_wide:
            return view
        return reblocked(self.builder, view, view.cuts, self.names[tensor], copy=True, wide=False)

    def _is_wide(self, tensor: str) -> bool:
        """Return whether a tensor is a sum of several sub-operators that is held as a wide one."""
        # A sum over one slice is one product, which its kernel rounds once: it needs no wide sum.
        summed = {dim for dim, slices in self.sequence.grid.items() if slices > 1}
        if not self.wide_sums or tensor not in OUTPUTS or summed <= set(tensor_dims(tensor)):
            return False
        return is_wide_sum(tensor, self.sequence.steps)

    def written(self, tensor: str) -> str:
        """Return the name under which the products write a tensor."""
        return f"{self.names[tensor]}.sum" if self._is_wide(tensor) else self.names[tensor]

    def held(self, by_rank: Iterable[Iterable[str]], tensor: str) -> Held:
        """Return the indices of a tensor among the blocks of every rank of its programs."""
        held = tuple(indices(blocks, tensor) for blocks in by_rank)
        if tensor in self.turned:
            held = tuple(tuple(index[::-1] for index in indices) for indices in held)
        return held

    def dims(self, tensor: str) -> tuple[str, ...]:
        """Return the dims of a tensor's blocks, in their order in this program."""
        dims = tuple(dim for dim in tensor_dims(tensor) if dim in self.sequence.grid)
        return dims[::-1] if tensor in self.turned else dims

    def _template(self, tensor: str, name: str) -> str:
        return f"{name}[{','.join(self.dims(tensor))}]"

    def cuts(self, tensor: str) -> Cuts:
        """Return the cuts of a tensor into the blocks that the sequence computes with."""
        dims, grid = self.dims(tensor), self.sequence.grid
        return even([self.operator.size(dim) for dim in dims], [grid[dim] for dim in dims])


@lru_cache(maxsize=1024)
def lowered(
    sequence: Sequence, operator: Linear, phases: Phases, spends_weight: bool = False
) -> Program:
    """Return the program of some phases of one linear operator; it is lowered once."""
    return lower(sequence, operator, phases, spends_weight)


# In micro-batches

_SUM = frozenset(("dW",))


@dataclass(frozen=True)
class RepeatedProducts:
    """The products of one operator in a micro-batch; `home` is its weight."""

    step: StepContext
    products: Products
    home: View

    def forward(self) -> Program:
        """Append the forward product; returns its program."""
        return self._on_weight("forward")

    def backward(self) -> tuple[View, View]:
        """Append both gradients; returns those of input and weight, this one once summed."""
        phases: Phases = ("backward",) if self.step.splits else ("backward", "gradient")
        done = self._on_weight(*phases)
        dx = self.products.made(done, "dI")
        with self.step.weight_gradients():
            if self.step.splits:
                done = self._append("gradient")
            return dx, self._summed(done)

    def _on_weight(self, *phases: Phase) -> Program:
        """Append phases that read W, on a copy of it if they would not leave it at home."""
        products, builder = self.products, self.products.builder
        program = lowered(products.sequence, products.operator, phases)
        start, end = (
            products.held(blocks or (), "W") for blocks in (program.initial, program.final)
        )
        copy, name = self.home, f"{products.name}/W.{phases[0]}"
        # The phase starts with W elsewhere than it is at home: a copy goes there in every
        # micro-batch, and W itself stays for the next one.
        if not _same(start, copy.held):
            way = Way(*(self._weight_layout(phase) for phase in ("forward", phases[0])))
            copy = moved(builder, copy, way, copy.cuts, name, shared=True)
        # The phase would take W along (P2x2 ends with other blocks than it starts with): a copy
        # goes along.
        elif not _same(end, start):
            copy = reblocked(builder, copy, copy.cuts, name, copy=True)
        products.names["W"] = copy.name
        self._append(*phases)
        if copy is not self.home:
            for instructions, indices in zip(builder.programs, end, strict=True):
                instructions += [Free(block_name(copy.name, index)) for index in indices]
        return program

    def _weight_layout(self, phase: Phase) -> Layout:
        """Return the layout of W before a phase, over the dims of its blocks."""
        movement = movement_of(str(self.products.sequence), True)
        over = (1, 0) if "W" in self.products.turned else (0, 1)
        return part(layout(movement, phase, "W", last=False), over)

    def _append(self, *phases: Phase) -> Program:
        """Append phases; the sum of a weight gradient that moves is added where it ends."""
        products = self.products
        program = lowered(products.sequence, products.operator, phases)
        sums = _sums(products.sequence, products.operator, phases)
        if not sums.moves:
            products.append(sums.parts, phases)
            return program
        products.append(sums.parts, phases, apart=_SUM)
        held = products.held(program.final or (), "dW")
        for instructions, held_here in zip(products.builder.programs, held, strict=True):
            for block in (block_name(products.written("dW"), index) for index in held_here):
                arrived = scratch_name(block)
                instructions += [Compute((arrived,), block), Free(arrived)]
        return program

    def _summed(self, done: Program) -> View:
        """Declare the gradient of the weight, all-reduced in the last micro-batch."""
        products = self.products
        phases: Phases = ("gradient",) if self.step.splits else ("backward", "gradient")
        sums = _sums(products.sequence, products.operator, phases)
        dw = products.summed(done, "dW")
        with self.step.at_last():
            products.append(sums.reductions, ())
            return products.rounded(dw, "dW")


def _same(held: Held, other: Held) -> bool:
    """Return whether every rank has the same blocks."""
    return [set(indices) for indices in held] == [set(indices) for indices in other]


class _Sums(NamedTuple):
    """A program, and apart from it the all-reduces that end its weight gradients.

    `moves`: something else than these all-reduces and products changes or sends a gradient.
    """

    parts: Program
    reductions: Program
    moves: bool


@lru_cache(maxsize=1024)
def _sums(sequence: Sequence, operator: Linear, phases: Phases) -> _Sums:
    program = lowered(sequence, operator, phases)
    last = [Counter(_last_reductions(rank, nodes)) for rank, nodes in enumerate(program.programs)]
    parts, reductions = list[list[Instruction]](), list[list[Instruction]]()
    moves = False
    for rank, nodes in enumerate(program.programs):
        # An all-reduce may wait until the last micro-batch only if it is the last use of the
        # gradient on every member: else one rank would call it now, and another one later.
        common = {node for node in last[rank] if all(last[member][node] for member in node.group)}
        reductions.append(
            [node for node in nodes if isinstance(node, AllReduce) and node in common]
        )
        kept = {id(node) for node in reductions[-1]}
        parts.append([node for node in nodes if id(node) not in kept])
        moves |= any(_moves_sum(rank, node) for node in parts[-1])
    return _Sums(
        replace(program, programs=tuple(map(tuple, parts))),
        replace(program, programs=tuple(map(tuple, reductions))),
        moves,
    )


def _last_reductions(rank: int, nodes: tuple[Instruction, ...]) -> Iterator[AllReduce]:
    """Yield the all-reduces of weight gradients that nothing uses afterwards."""
    used_later: set[str] = set()
    uses = RankList(nodes, Rank(rank)).uses
    for node, used in zip(reversed(nodes), reversed(uses), strict=True):
        names = {*used.reads, *used.changes}
        if isinstance(node, AllReduce) and _is_sum(node.block) and not names & used_later:
            yield node
        else:
            used_later |= names


def _moves_sum(rank: int, node: Instruction) -> bool:
    is_product = isinstance(node, Compute) and node.phase is not None
    used = Rank(rank).touched(node)
    return not is_product and any(map(_is_sum, (*used.reads, *used.changes)))


def _is_sum(block: str) -> bool:
    return block.startswith("dW[")


# The operator


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
            self.step.gradients["embedding.token"] = view_with(home, dims=table.dims)
        return (dx,)
