"""Merges products of adjacent slices into one product.

If every rank computes the slices of a dim of a phase in aligned groups of `f` neighbours, the
phase gets a grid that is coarser by `f` along that dim. The merged product has the position of the
last product of its group. Operands that are cut along the dim are joined in place before it and cut
in place after it; its output is cut after it too. Cuts and joins that undo each other are removed.
The phases are those with a kernel `linear.*`. Programs of one operator get signatures if they
define a shape.

Why it is correct: a product of matrices is dense along each dim. So the product of joined slices is
the concatenation of the products of the parts; or, along a dim that is summed over, their sum. The
products of a group have one scale. A group is merged only if from its first product to its last
nothing else changes its operands or uses its output. Also, no joined block may be in flight there,
and an output that is joined must be new.

    forward  y[0,0] += x[0,0] * w[0,0]         join     x[0,0] x[1,0] -> x.joined[0,0], in place
    forward  y[1,0] += x[1,0] * w[0,0]   ->    forward  y.joined[0,0] += x.joined[0,0] * w[0,0]
                                               cut      x.joined[0,0] -> x[0,0] x[1,0], in place
                                               cut      y.joined[0,0] -> y[0,0] y[1,0], in place

Memory: operands that were freed between the products of a group are freed after the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited, tidied
from primepar.passes.program_tables import Tables, template_text
from primepar.schedule.operators import block_name
from primepar.schedule.program import Compute, Cut, Free, Instruction, Join, Program
from primepar.schedule.program_uses import initial_blocks
from primepar.schedule.signature import Signature, Template, multiplies

Products = list[tuple[int, Compute]]
"""Positions and products of a phase on one rank."""


def merge_products(program: Program) -> Program:
    """Return the program with products of adjacent slices merged, where all ranks can."""
    tables = Tables(program)
    lists: list[list[Instruction]] = [list(nodes) for nodes in program.programs]
    dims = dict.fromkeys(chain.from_iterable(tables.grid.values()))
    # Dims that are summed over come first: only then is every output of the other dims new.
    lines = _Lines(lists, initial_blocks(program))
    rounds = [_Round(tables, lines, dim, summed) for summed in (True, False) for dim in dims]
    merged = [merging for merging in rounds if merging.merges()]
    return tables.program_of(lists) if merged else program


@dataclass(frozen=True)
class _Operand:
    """One tensor of a phase, in its own cuts.

    `dim` is the number of the dim to be merged, None if the tensor does not have it. `place` is its
    position among the reads of a product, None for the output.
    """

    template: Template
    place: int | None
    dim: int | None

    def block(self, node: Compute) -> str:
        """Return its block in a product."""
        return node.accumulates if self.place is None else node.reads[self.place]


@dataclass(frozen=True)
class _Group:
    """Products of one rank that become one, with their positions in its list."""

    line: RankList
    products: Products

    @property
    def last(self) -> int:
        """Position of the merged product."""
        return self.products[-1][0]

    def blocks(self, operand: _Operand) -> dict[str, int]:
        """Return the blocks of an operand, each with the position of its first product."""
        return {operand.block(node): place for place, node in reversed(self.products)}

    def merges(self, operands: Sequence[_Operand]) -> bool:
        """Return whether one product can replace the group, at the position of its last."""
        return not self.line.is_waiting(self.products[0][0], self.last) and all(
            map(self._fits, operands)
        )

    def _fits(self, operand: _Operand) -> bool:
        blocks = self.blocks(operand)
        if operand.dim is None:
            ((block, place), *others) = blocks.items()
            return not others and self._is_still(operand, block, place)
        named = {operand.template.block(node.sub_operator or {}) for _, node in self.products}
        return blocks.keys() == named and all(
            self._is_still(operand, block, place)
            and not self.line.is_in_flight(block, self.last)
            and (operand.place is not None or self.line.is_absent(block, place))
            for block, place in blocks.items()
        )

    def _is_still(self, operand: _Operand, block: str, place: int) -> bool:
        """Return whether a block keeps its content from its product to the last one.

        The output must not be used at all; an operand may be read, and freed if it is joined.
        """
        products = {position for position, _ in self.products}
        uses = self.line.between(block, place, self.last)
        others = [use for use in uses if use not in products]
        if operand.place is None:
            return not others
        nodes: Sequence[Any] = self.line.nodes
        return all(
            (type(nodes[use]) is Free and operand.dim is not None)
            or (type(nodes[use]) is Compute and nodes[use].accumulates != block)
            for use in others
        )

    def frees(self, operand: _Operand) -> list[int]:
        """Return the positions where an operand's blocks are freed between the products."""
        return [
            use
            for block, place in self.blocks(operand).items()
            for use in self.line.between(block, place, self.last)
            if type(self.line.nodes[use]) is Free
        ]


class _Lines:
    """The list of every rank; the positions of its uses are computed at first access."""

    def __init__(self, lists: list[list[Instruction]], initial: Sequence[Sequence[str]]) -> None:
        self.lists, self.initial = lists, initial
        self.ranks = [Rank(rank) for rank in range(len(lists))]
        self._known: list[RankList | None] = [None] * len(lists)

    def __getitem__(self, rank: int) -> RankList:
        known = self._known[rank]
        if known is None or known.nodes is not self.lists[rank]:
            known = RankList(self.lists[rank], self.ranks[rank], self.initial[rank])
            self._known[rank] = known
        return known


class _Round:
    """Merges along one dim, and changes the given tables and lists.

    It takes the phases that are `summed` over the dim, or those that are not.
    """

    def __init__(
        self,
        tables: Tables,
        lines: _Lines,
        dim: str,
        summed: bool,
    ) -> None:
        self.tables, self.lines, self.lists = tables, lines, lines.lists
        self.dim, self.summed = dim, summed
        self._moved: list[dict[int, int]] = [{} for _ in self.lists]
        """For every rank: position of a free -> position of the merged product before it."""

    def merges(self) -> bool:
        """Merge all phases that can be merged; return whether there are any."""
        edits: list[Edits] = [{} for _ in self.lists]
        for phase, ranks in self._candidates():
            signature = self.tables.phases[phase]
            *reads, writes = signature.templates
            operands = [self._operand(template, place) for place, template in enumerate(reads)]
            operands.append(self._operand(writes, None))
            slices = self.tables.grid[phase][self.dim]
            for factor in range(slices, 1, -1):
                groups = self._groups(ranks, slices, factor)
                if groups and all(group.merges(operands) for group in chain(*groups)):
                    self._merge(phase, operands, factor, groups, edits)
                    break
        for rank, rank_edits in enumerate(edits):
            for place, after in self._moved[rank].items():
                rank_edits[place] = []
                rank_edits[after].append(self.lists[rank][place])
            if rank_edits:
                nodes = edited(self.lists[rank], rank_edits)
                self.lists[rank] = tidied(nodes, self.lines.ranks[rank])
        return any(edits)

    def _candidates(self) -> Iterator[tuple[str, list[Products]]]:
        """Yield phases of which every rank computes no slice or several."""
        products_by_phase: dict[str, list[Products]] = {
            phase: [[] for _ in self.lists]
            for phase, signature in self.tables.phases.items()
            if self.tables.grid.get(phase, {}).get(self.dim, 1) > 1
            and (self.dim not in signature.templates[-1].dims) == self.summed
            and self._is_linear(signature)
        }
        for rank, nodes in enumerate(self.lists):
            for place, node in enumerate(nodes):
                if type(node) is Compute and node.phase in products_by_phase:
                    products_by_phase[node.phase][rank].append((place, node))
        for phase, ranks in products_by_phase.items():
            if all(len(products) != 1 for products in ranks) and any(ranks):
                yield phase, ranks

    def _is_linear(self, signature: Signature) -> bool:
        entries = [entry for template in signature.templates for entry in template.entries]
        return multiplies(signature.kernel) and all(number == 1 for dim, number in entries if dim)

    def _operand(self, template: Template, place: int | None) -> _Operand:
        dims = [dim for dim, _ in template.entries]
        return _Operand(template, place, dims.index(self.dim) if self.dim in dims else None)

    def _groups(self, ranks: list[Products], slices: int, factor: int) -> list[list[_Group]]:
        """Return the groups of every rank; an empty list if a group is not complete."""
        if slices % factor:
            return []
        groups: list[list[_Group]] = []
        for rank, products in enumerate(ranks):
            parts: dict[tuple[object, ...], Products] = {}
            for place, node in products:
                slices_of = (node.sub_operator or {}).items()
                key = (
                    node.scale,
                    node.again,
                    *(number // factor if dim == self.dim else number for dim, number in slices_of),
                )
                parts.setdefault(key, []).append((place, node))
            if any(len(part) != factor for part in parts.values()):
                return []
            groups.append([_Group(self.lines[rank], part) for part in parts.values()])
        return groups

    def _merge(
        self,
        phase: str,
        operands: list[_Operand],
        factor: int,
        groups: list[list[_Group]],
        edits: list[Edits],
    ) -> None:
        """Write the merged products of a phase into the edits of every rank and the tables."""
        names = {operand: self._coarse(operand, factor, groups) for operand in operands}
        for rank, rank_groups in enumerate(groups):
            for group in rank_groups:
                edits[rank].update(self._edits(group, operands, names, factor))
        texts = [template_text(names[operand], operand.template) for operand in operands]
        known = self.tables.phases[phase]
        self.tables.phases[phase] = Signature(
            tuple(texts[:-1]), texts[-1], known.reduction, known.kernel, known.scale
        )
        self.tables.grid[phase][self.dim] //= factor

    def _coarse(self, operand: _Operand, factor: int, groups: list[list[_Group]]) -> str:
        """Return the name of an operand in coarser cuts; no live block has it."""
        tensor = operand.template.tensor
        coarse = None if operand.dim is None else self.tables.coarser(tensor, operand.dim, factor)
        if coarse is None:
            return tensor

        def is_free(name: str) -> bool:
            return all(
                group.line.is_absent(self._joined(group, operand, name, factor), group.last)
                for group in chain(*groups)
            )

        return self.tables.name(tensor, coarse, is_free)

    def _joined(self, group: _Group, operand: _Operand, name: str, factor: int) -> str:
        """Return the coarse block of a group."""
        slices = dict(group.products[0][1].sub_operator or {})
        slices[self.dim] //= factor
        return block_name(name, operand.template.index(slices))

    def _edits(
        self, group: _Group, operands: list[_Operand], names: dict[_Operand, str], factor: int
    ) -> Edits:
        """Return the edits: the merged product replaces the last one, the others are removed."""
        rank = group.line.rank.rank
        joins: list[Instruction] = []
        cuts: list[Instruction] = []
        blocks = {}
        edits: Edits = {place: [] for place, _ in group.products}
        for operand in operands:
            if operand.dim is None:
                (blocks[operand],) = group.blocks(operand)
                continue
            whole = self._joined(group, operand, names[operand], factor)
            parts = self._parts(group, operand)
            blocks[operand] = whole
            if operand.place is not None:
                joins.append(Join(parts, whole, in_place=True))
            cuts.append(Cut(whole, parts, in_place=True))
            for place in group.frees(operand):
                self._moved[rank][place] = max(group.last, self._moved[rank].get(place, 0))
        *reads, made = (blocks[operand] for operand in operands)
        last = group.products[-1][1]
        slices = {**(last.sub_operator or {})}
        slices[self.dim] //= factor
        merged = replace(last, reads=tuple(reads), accumulates=made, sub_operator=slices)
        edits[group.last] = [*joins, merged, *cuts]
        return edits

    def _parts(self, group: _Group, operand: _Operand) -> tuple[str, ...]:
        products = sorted(group.products, key=lambda pair: (pair[1].sub_operator or {})[self.dim])
        return tuple(operand.block(node) for _, node in products)
