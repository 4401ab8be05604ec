"""A program in the making: instructions of every rank, and what the names in them mean.

Between two operators a tensor lies in blocks under one name, a `View` of it. Operators cut a tensor
in different ways; a view in other cuts has a name of its own, `of` the name of the tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from itertools import chain

from primepar.schedule.layout import Layout
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import AllReduce, Compute, Instruction, Program
from primepar.schedule.signature import Reduction, Signature, Template, Tensor

Cuts = tuple[tuple[int, ...], ...]
"""For each dim the first element of every slice, then the size."""
Held = tuple[tuple[Index, ...], ...]
"""The blocks of a tensor on every rank."""
Groups = tuple[tuple[int, ...], ...]

COPIES = "R"
"""The dim of a phase's grid that counts ranks which do the same."""


def even(shape: Several[int], grid: Several[int]) -> Cuts:
    """Cuts of a tensor into equal slices."""
    return tuple(
        tuple(at * size // slices for at in range(slices + 1))
        for size, slices in zip(shape, grid, strict=True)
    )


@dataclass(frozen=True)
class View:
    """A tensor under one name: how it is cut, and which of its blocks every rank holds."""

    name: str
    cuts: Cuts
    held: Held
    dims: tuple[str, ...]
    """Its dims as signatures name them; a number is a fixed slice."""

    @property
    def template(self) -> str:
        """What its blocks are called in signatures, `x[M,K]`."""
        return f"{self.name}[{','.join(self.dims)}]"

    def blocks(self, rank: int) -> list[str]:
        """Names of the blocks of a rank."""
        return [block_name(self.name, index) for index in self.held[rank]]


@dataclass(frozen=True)
class IterationSpace:
    """What a phase is computed over: its dims with their sizes, and each rank's part of them."""

    layout: Layout
    sizes: Mapping[str, int]

    @property
    def slices(self) -> dict[str, int]:
        """Dim -> number of slices."""
        return dict(zip(self.sizes, self.layout.grid, strict=True))

    @property
    def cuts(self) -> Cuts:
        """Cuts of a tensor of all of the dims."""
        return even(tuple(self.sizes.values()), self.layout.grid)

    def cuts_of(self, template: Template, fixed: int) -> Cuts:
        """Cuts of what a template names, of `fixed` elements where its index is a number."""
        sizes = [self.sizes[dim] if dim else fixed for dim, _ in template.entries]
        grid = [self.slices[dim] // number if dim else 1 for dim, number in template.entries]
        return even(sizes, grid)

    def sub_operators(self, rank: int, dims: Several[str]) -> list[dict[str, int]]:
        """What a rank does of a phase over some of the dims."""
        places = [list(self.sizes).index(dim) for dim in dims]
        parts = dict.fromkeys(tuple(i[place] for place in places) for i in self.layout.held[rank])
        return [dict(zip(dims, part, strict=True)) for part in parts]


def phase_name(name: str, kernel: str) -> str:
    """What a phase of an operator or parameter is called: its name, and the kernel's last words."""
    return f"{name}.{kernel.partition('.')[2]}"


@dataclass
class ProgramBuilder:
    """Instructions so far, and the tables of the program."""

    ranks: int
    programs: list[list[Instruction]] = field(init=False)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    phases: dict[str, Signature] = field(default_factory=dict)
    grid: dict[str, dict[str, int]] = field(default_factory=dict)
    initial: list[list[str]] = field(init=False)
    final: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.ranks)]
        self.initial = [[] for _ in range(self.ranks)]
        self.final = [[] for _ in range(self.ranks)]

    def program(self) -> Program:
        """What has been made."""
        return Program(
            format="primepar-program",
            version=1,
            ranks=self.ranks,
            programs=tuple(map(tuple, self.programs)),
            grid=self.grid,
            initial=tuple(map(tuple, self.initial)),
            final=tuple(map(tuple, self.final)),
            phases=self.phases,
            tensors=self.tensors,
        )

    def new(
        self,
        name: str,
        cuts: Cuts,
        held: Iterable[Iterable[Index]],
        dims: tuple[str, ...],
        wide: bool = False,
    ) -> View:
        """A tensor under its own name."""
        assert name not in self.tensors
        self.tensors[name] = Tensor(cuts, wide=wide)
        return View(name, cuts, tuple(map(tuple, held)), dims)

    def other(self, view: View, name: str, cuts: Cuts, held: Iterable[Iterable[Index]]) -> View:
        """A tensor that is there, in other cuts and under another name."""
        assert name not in self.tensors
        known = self.tensors[view.name]
        self.tensors[name] = Tensor(cuts, known.of or view.name, known.wide)
        return View(name, cuts, tuple(map(tuple, held)), view.dims)

    def given(self, name: str, space: IterationSpace, *dims: str, fixed: int = 1) -> View:
        """A tensor that lies where `space` has it before the program; a number is a fixed slice."""
        template = Template.parse(f"{name}[{','.join(dims)}]")
        named = [dim for dim in space.sizes if dim in template.dims]
        held = [
            [template.index(own) for own in space.sub_operators(rank, named)]
            for rank in range(self.ranks)
        ]
        view = self.new(name, space.cuts_of(template, fixed), held, dims)
        self.begin_with(view)
        return view

    def begin_with(self, view: View) -> None:
        """Have the blocks of a view there before the program."""
        for rank, blocks in enumerate(self.initial):
            blocks += view.blocks(rank)

    def end_with(self, view: View) -> None:
        """Ask for the blocks of a view after the program."""
        for rank, blocks in enumerate(self.final):
            blocks += view.blocks(rank)

    def compute(
        self,
        name: str,
        kernel: str,
        space: IterationSpace,
        reads: Several[View],
        writes: str,
        reduction: Reduction = "sum",
        fixed: int = 1,
        wide: bool = False,
    ) -> View:
        """Compute a phase wherever `space` says; ranks with the same part of it do copies.

        The phase is called after `name` and the kernel: `norm1.mean` of `norm.mean`. `writes` is a
        template over the dims of the space; where its index is a number, the slice has `fixed`
        elements. Returns what is written, a `wide` tensor or one of the model's type.
        """
        phase = phase_name(name, kernel)
        signature = Signature(tuple(view.template for view in reads), writes, reduction, kernel)
        *read, written = signature.templates
        dims = [dim for dim in space.sizes if dim in signature.dims]
        mine = [space.sub_operators(rank, dims) for rank in range(self.ranks)]
        copies: dict[tuple[int, ...], int] = {}
        for sub_operator in chain(*mine):
            key = tuple(sub_operator.values())
            sub_operator[COPIES] = copies[key] = copies.get(key, -1) + 1
        self.phases[phase] = signature
        self.grid[phase] = {dim: space.slices[dim] for dim in dims}
        several = max(copies.values())
        if several:
            self.grid[phase][COPIES] = several + 1
        for program, own in zip(self.programs, mine, strict=True):
            for sub_operator in own:
                if not several:
                    del sub_operator[COPIES]
                names = tuple(template.block(sub_operator) for template in read)
                program.append(Compute(names, written.block(sub_operator), phase, sub_operator))
        held = [dict.fromkeys(written.index(each) for each in own) for own in mine]
        entries = writes.removeprefix(f"{written.tensor}[").removesuffix("]").split(",")
        cuts = space.cuts_of(written, fixed)
        return self.new(written.tensor, cuts, held, tuple(entries), wide)

    def all_reduce(self, view: View, groups: Groups, reduction: Reduction = "sum") -> None:
        """Reduce the blocks of the ranks of each group of two or more."""
        for group in groups:
            if len(group) > 1:
                for rank in group:
                    self.programs[rank] += [
                        AllReduce(group, block=block, reduction=reduction)
                        for block in view.blocks(rank)
                    ]


def refined(one: Cuts, other: Cuts) -> Cuts:
    """The coarsest cuts that are finer than both."""
    return tuple(tuple(sorted({*a, *b})) for a, b in zip(one, other, strict=True))


def inside(fine: Cuts, coarse: Cuts, index: Index) -> list[range]:
    """For each dim the fine slices that one coarse block is made of."""
    found = []
    for small, large, at in zip(fine, coarse, index, strict=True):
        found.append(range(small.index(large[at]), small.index(large[at + 1])))
    return found


def around(fine: Cuts, coarse: Cuts, index: Index) -> Index:
    """The coarse block that a fine one lies in."""
    triples = zip(fine, coarse, index, strict=True)
    return tuple(bisect_right(large, small[at]) - 1 for small, large, at in triples)
