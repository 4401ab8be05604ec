"""Builds a program: the instructions of every rank, and the tables that define their names.

Between two operators a tensor is stored in blocks under one name, a `View` of it. Operators cut a
tensor in different ways. A view with other cuts has its own name; `of` refers to the tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from msgspec import structs

from primepar.schedule.layout import Layout
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import AllReduce, Compute, Instruction, Program
from primepar.schedule.signature import Coefficient, Reduction, Signature, Template, Tensor

Cuts = tuple[tuple[int, ...], ...]
"""For each dim the first element of every slice, followed by the size."""
Held = tuple[tuple[Index, ...], ...]
"""The blocks of a tensor on every rank."""
Groups = tuple[tuple[int, ...], ...]

COPIES = "R"
"""The dim of a phase's grid that numbers ranks with the same computation (replicas)."""


def even(shape: Several[int], grid: Several[int]) -> Cuts:
    """Return cuts of a tensor into equal slices."""
    return tuple(
        tuple(number * size // slices for number in range(slices + 1))
        for size, slices in zip(shape, grid, strict=True)
    )


@dataclass(frozen=True)
class View:
    """A tensor under one name: its cuts, and the blocks of it that every rank holds."""

    name: str
    cuts: Cuts
    held: Held
    dims: tuple[str, ...]
    """Its dims, as in signatures; a number is a fixed slice."""

    @property
    def template(self) -> str:
        """The template of its blocks in signatures, `x[M,K]`."""
        return f"{self.name}[{','.join(self.dims)}]"

    @property
    def grid(self) -> Index:
        """Number of slices along each dim."""
        return tuple(len(line) - 1 for line in self.cuts)

    def blocks(self, rank: int) -> list[str]:
        """Return the names of a rank's blocks."""
        return [block_name(self.name, index) for index in self.held[rank]]


@dataclass(frozen=True)
class IterationSpace:
    """The iteration space of a phase: its dims with their sizes, and each rank's part of them."""

    layout: Layout
    sizes: Mapping[str, int]

    @property
    def slices(self) -> dict[str, int]:
        """Dim -> number of slices."""
        return dict(zip(self.sizes, self.layout.grid, strict=True))

    @property
    def cuts(self) -> Cuts:
        """Cuts of a tensor with all dims of the space."""
        return even(tuple(self.sizes.values()), self.layout.grid)

    def cuts_of(self, template: Template, fixed: int) -> Cuts:
        """Return the cuts of a template's tensor; a fixed slice (a number) has `fixed` elements."""
        sizes = [self.sizes[dim] if dim else fixed for dim, _ in template.entries]
        grid = [self.slices[dim] // number if dim else 1 for dim, number in template.entries]
        return even(sizes, grid)

    def sub_operators(self, rank: int, dims: Several[str]) -> list[dict[str, int]]:
        """Return the sub-operators of a rank, for a phase over some of the dims."""
        places = [list(self.sizes).index(dim) for dim in dims]
        parts = dict.fromkeys(tuple(i[place] for place in places) for i in self.layout.held[rank])
        return [dict(zip(dims, part, strict=True)) for part in parts]


def phase_name(name: str, kernel: str) -> str:
    """Return the name of a phase: operator or parameter, and the kernel without its first word."""
    return f"{name}.{kernel.partition('.')[2]}"


@dataclass(frozen=True)
class Section:
    """The lists of all ranks that are repeated; `last` are positions of what runs only once.

    `marks` are positions on all ranks, by name.
    """

    programs: list[list[Instruction]]
    last: list[set[int]]
    marks: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, ranks: int) -> Section:
        """An empty section."""
        return cls([[] for _ in range(ranks)], [set() for _ in range(ranks)])

    @property
    def end(self) -> tuple[int, ...]:
        """The position after every rank's list."""
        return tuple(map(len, self.programs))

    def insert(self, rank: int, added: Mapping[int, list[Instruction]]) -> None:
        """Insert instructions before positions of a rank's list; marks stay as they are."""
        nodes, last = self.programs[rank], self.last[rank]
        done: list[Instruction] = []
        new_last: set[int] = set()
        for position in range(len(nodes) + 1):
            done += added.get(position, ())
            # Positions move with what is inserted before them, and so do those of what runs only
            # once.
            if position in last:
                new_last.add(len(done))
            done += nodes[position : position + 1]
        nodes[:] = done
        last.clear()
        last.update(new_last)


@dataclass
class ProgramBuilder:
    """The instructions so far, and the tables of the program.

    Instructions are appended to `programs`; within a `section` to the lists of that section.
    """

    ranks: int
    programs: list[list[Instruction]] = field(init=False)
    sections: dict[str, Section] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensor -> its dims, as in signatures."""
    phases: dict[str, Signature] = field(default_factory=dict)
    grid: dict[str, dict[str, int]] = field(default_factory=dict)
    initial: list[list[str]] = field(init=False)
    final: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.ranks)]
        self.initial = [[] for _ in range(self.ranks)]
        self.final = [[] for _ in range(self.ranks)]

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Append instructions to the lists of a section; its name may be used again."""
        outside = self.programs
        section = self.sections.setdefault(name, Section.of(self.ranks))
        self.programs = section.programs
        yield
        self.programs = outside

    def mark(self, name: str) -> None:
        """Mark, within a section, where every rank's list ends now."""
        for section in self.sections.values():
            if section.programs is self.programs:
                section.marks[name] = tuple(map(len, self.programs))

    @contextmanager
    def last_time(self) -> Iterator[None]:
        """Append instructions that run only the last time that their section is repeated."""
        starts = [len(nodes) for nodes in self.programs]
        yield
        (section,) = (known for known in self.sections.values() if known.programs is self.programs)
        for last, nodes, start in zip(section.last, self.programs, starts, strict=True):
            last.update(range(start, len(nodes)))

    def program(self) -> Program:
        """Return the finished program."""
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
        """Declare a new tensor."""
        assert name not in self.tensors
        self.tensors[name], self.dims[name] = Tensor(cuts, wide=wide), dims
        return View(name, cuts, tuple(map(tuple, held)), dims)

    def other(
        self,
        view: View,
        name: str,
        cuts: Cuts,
        held: Iterable[Iterable[Index]],
        wide: bool | None = None,
    ) -> View:
        """Declare other cuts of an existing tensor, under another name; as wide as it, or not."""
        assert name not in self.tensors
        known = self.tensors[view.name]
        wide = known.wide if wide is None else wide
        self.tensors[name] = Tensor(cuts, known.of or view.name, wide)
        self.dims[name] = view.dims
        return View(name, cuts, tuple(map(tuple, held)), view.dims)

    def exchange_names(self, part: str, whole: str) -> None:
        """Let a tensor be other cuts of `whole`, which was other cuts of it."""
        known = self.tensors
        known[part] = structs.replace(known[part], of=whole)
        known[whole] = structs.replace(known[whole], of=None)

    def given(
        self, name: str, space: IterationSpace, *dims: str, fixed: int = 1, wide: bool = False
    ) -> View:
        """Declare an input of the program in the layout of `space`; a number is a fixed slice."""
        template = Template.parse(f"{name}[{','.join(dims)}]")
        named = [dim for dim in space.sizes if dim in template.dims]
        held = [
            [template.index(slices) for slices in space.sub_operators(rank, named)]
            for rank in range(self.ranks)
        ]
        view = self.new(name, space.cuts_of(template, fixed), held, dims, wide)
        self.begin_with(view)
        return view

    def begin_with(self, view: View) -> None:
        """Make the blocks of a view inputs of the program."""
        for rank, blocks in enumerate(self.initial):
            blocks += view.blocks(rank)

    def end_with(self, view: View) -> None:
        """Make the blocks of a view outputs of the program."""
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
        scale: Coefficient = "1",
    ) -> View:
        """Compute a phase on the ranks of `space`; ranks with the same part compute replicas.

        The phase is named after `name` and the kernel: `norm1.square` of `norm.square`. `writes` is
        a template over the dims of the space; a slice with a number as index has `fixed` elements.
        Every part is multiplied by `scale`. Returns the written tensor, which is `wide` or has the
        model's dtype.
        """
        phase = phase_name(name, kernel)
        templates = tuple(view.template for view in reads)
        signature = Signature(templates, writes, reduction, kernel, scale)
        *read, written = signature.templates
        dims = [dim for dim in space.sizes if dim in signature.dims]
        by_rank = [space.sub_operators(rank, dims) for rank in range(self.ranks)]
        copies: dict[tuple[int, ...], int] = {}
        for sub_operator in chain(*by_rank):
            key = tuple(sub_operator.values())
            # Replicas compute the same sub-operator, which the grid counts once: so each copy is
            # one of a dim of its own. Two data-parallel ranks compute norm M=0 with R=0 and with
            # R=1.
            sub_operator[COPIES] = copies[key] = copies.get(key, -1) + 1
        self.phases[phase] = signature
        self.grid[phase] = {dim: space.slices[dim] for dim in dims}
        several = max(copies.values())
        if several:
            self.grid[phase][COPIES] = several + 1
        for program, sub_operators in zip(self.programs, by_rank, strict=True):
            for sub_operator in sub_operators:
                if not several:
                    del sub_operator[COPIES]
                names = tuple(template.block(sub_operator) for template in read)
                block = written.block(sub_operator)
                program.append(Compute(names, block, phase, sub_operator, scale))
        held = [dict.fromkeys(map(written.index, sub_operators)) for sub_operators in by_rank]
        entries = writes.removeprefix(f"{written.tensor}[").removesuffix("]").split(",")
        cuts = space.cuts_of(written, fixed)
        return self.new(written.tensor, cuts, held, tuple(entries), wide)

    def all_reduce(self, view: View, groups: Groups, reduction: Reduction = "sum") -> None:
        """All-reduce the blocks of each group of two or more ranks."""
        for group in groups:
            if len(group) > 1:
                for rank in group:
                    self.programs[rank] += [
                        AllReduce(group, block=block, reduction=reduction)
                        for block in view.blocks(rank)
                    ]


def refined(one: Cuts, other: Cuts) -> Cuts:
    """Return the coarsest cuts that refine both."""
    return tuple(tuple(sorted({*a, *b})) for a, b in zip(one, other, strict=True))


def inside(fine: Cuts, coarse: Cuts, index: Index) -> list[range]:
    """Return for each dim the fine slices within one coarse block."""
    ranges = []
    for small, large, number in zip(fine, coarse, index, strict=True):
        ranges.append(range(small.index(large[number]), small.index(large[number + 1])))
    return ranges


def around(fine: Cuts, coarse: Cuts, index: Index) -> Index:
    """Return the coarse block that contains a fine one."""
    triples = zip(fine, coarse, index, strict=True)
    return tuple(bisect_right(large, small[number]) - 1 for small, large, number in triples)
