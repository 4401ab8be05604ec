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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from primepar.passes.block_uses import RankList, rank_lists
from primepar.passes.in_place_parts import Edits, delay, edited, tidied
from primepar.passes.program_tables import Tables, divides_nothing, template_text
from primepar.schedule.operators import block_name
from primepar.schedule.program import Compute, Cut, Free, Join, Program
from primepar.schedule.signature import Template, multiplies

Products = list[tuple[int, Compute]]
"""Positions and products of a phase on one rank."""


def merge_products(program: Program) -> Program:
    """Return the program with products of adjacent slices merged, where all ranks can."""
    tables = Tables(program)
    lines = [_Line(line) for line in rank_lists(program)]
    dims = dict.fromkeys(chain.from_iterable(tables.grid.values()))
    # Dims that are summed over come first: only then is every output of the other dims new.
    # Without `final` the outputs may be needed at the end, under their own names: they stay apart.
    # y[0,0] and y[1,0] could only be cut out of y.joined again, for whoever reads them at the end.
    orders = (True,) if program.final is None else (True, False)
    rounds = [_Round(tables, lines, dim, summed) for summed in orders for dim in dims]
    merged = [merging for merging in rounds if merging.merges()]
    return tables.program_of([list(known.line.nodes) for known in lines]) if merged else program


class _Line:
    """The list of one rank before a round, and its products by phase."""

    def __init__(self, line: RankList) -> None:
        self.line = line
        self.products: dict[str, Products] = {}
        for place, node in enumerate(line.nodes):
            if type(node) is Compute and node.phase is not None:
                self.products.setdefault(node.phase, []).append((place, node))


class _Operand(NamedTuple):
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

    def slices(self, dim: str, factor: int) -> dict[str, int]:
        """Return the sub-operator of the merged product."""
        slices = dict(self.products[-1][1].sub_operator or {})
        return {**slices, dim: slices[dim] // factor}

    def blocks(self, operand: _Operand) -> dict[str, int]:
        """Return the blocks of an operand, each with the position of its first product."""
        return {operand.block(node): place for place, node in reversed(self.products)}

    def merges(self, operands: Sequence[_Operand]) -> bool:
        """Return whether one product can replace the group, at the position of its last."""
        # The products before the last one move down to it. Past a message they may not: it may send
        # what they compute.
        return not self.line.is_waiting(self.products[0][0], self.last) and all(
            map(self._fits, operands)
        )

    def _fits(self, operand: _Operand) -> bool:
        blocks = self.blocks(operand)
        if operand.dim is None:
            ((block, place), *others) = blocks.items()
            # A tensor without the dim is one block for all of them: W[0] of y[0] += x[0] W[0], y[1]
            # += x[1] W[0].
            return not others and self._is_still(operand, block, place)
        named = {operand.template.block(node.sub_operator or {}) for _, node in self.products}
        # Under its own name: what reads I[0,1] from a second buffer I[0,1]' has no neighbour to be
        # joined with.
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


class _Round:
    """Merges along one dim, and changes the given tables and lists.

    It takes the phases that are `summed` over the dim, or those that are not.
    """

    def __init__(self, tables: Tables, lines: list[_Line], dim: str, summed: bool) -> None:
        self.tables, self.lines, self.dim, self.summed = tables, lines, dim, summed
        self.edits: list[Edits] = [{} for _ in lines]
        self.moved: list[dict[int, int]] = [{} for _ in lines]
        """For every rank: position of a free -> position of the merged product before it."""

    def merges(self) -> bool:
        """Merge all phases that can be merged; return whether there are any."""
        for phase, ranks in self._candidates().items():
            *reads, writes = self.tables.phases[phase].templates
            operands = [self._operand(template, place) for place, template in enumerate(reads)]
            operands.append(self._operand(writes, None))
            slices = self.tables.grid[phase][self.dim]
            # The coarsest grid that all ranks can have: of 4 slices first one group of 4, then two
            # of 2.
            for factor in range(slices, 1, -1):
                groups = self._groups(ranks, factor) if slices % factor == 0 else []
                if groups and all(group.merges(operands) for group in groups):
                    self._merge(phase, operands, factor, groups)
                    break
        for rank, edits in enumerate(self.edits):
            if edits:
                line = self.lines[rank].line
                nodes = edited(line.nodes, delay(edits, line.nodes, self.moved[rank]))
                line = RankList(tidied(nodes, line.rank), line.rank, line.initial)
                self.lines[rank] = _Line(line)
        return any(self.edits)

    def _candidates(self) -> dict[str, list[Products]]:
        """Return the phases of which every rank computes no slice or several, and its products."""
        candidates = {
            phase: [line.products.get(phase, []) for line in self.lines]
            for phase, signature in self.tables.phases.items()
            if self.tables.grid.get(phase, {}).get(self.dim, 1) > 1
            and (self.dim not in signature.templates[-1].dims) == self.summed
            and multiplies(signature.kernel)
            and divides_nothing(signature)
        }
        return {
            phase: ranks
            for phase, ranks in candidates.items()
            # The phase has one grid for all ranks, and a rank with one slice has nothing to merge
            # it with.
            if any(ranks) and all(len(products) != 1 for products in ranks)
        }

    def _operand(self, template: Template, place: int | None) -> _Operand:
        dims = [dim for dim, _ in template.entries]
        return _Operand(template, place, dims.index(self.dim) if self.dim in dims else None)

    def _groups(self, ranks: list[Products], factor: int) -> list[_Group]:
        """Return the groups of all ranks; an empty list if one is not complete.

        Example: slices 0, 1, 2, 3 of the dim by a factor of 2 are the groups 0, 1 and 2, 3.
        """
        groups: list[_Group] = []
        for known, products in zip(self.lines, ranks, strict=True):
            parts: dict[tuple[object, ...], Products] = {}
            for place, node in products:
                slices = {**(node.sub_operator or {})}
                slices[self.dim] //= factor
                # Products of one group are alike in all but the dim: same row and column, same
                # scale, and both or neither recomputed.
                key = (node.scale, node.again, *slices.values())
                parts.setdefault(key, []).append((place, node))
            # Slices 0 and 1 are one coarse slice; a rank that has 0 alone could compute half of it.
            if any(len(part) != factor for part in parts.values()):
                return []
            groups += [_Group(known.line, part) for part in parts.values()]
        return groups

    def _merge(
        self, phase: str, operands: list[_Operand], factor: int, groups: list[_Group]
    ) -> None:
        """Write the merged products of a phase into the edits of every rank and the tables."""
        names = [self._coarse(operand, factor, groups) for operand in operands]
        for group in groups:
            self._write(group, operands, names, factor)
        *reads, writes = (
            template_text(name, operand.template)
            for name, operand in zip(names, operands, strict=True)
        )
        known = self.tables.phases[phase]
        self.tables.phases[phase] = replace(known, reads=tuple(reads), writes=writes)
        self.tables.grid[phase][self.dim] //= factor

    def _coarse(self, operand: _Operand, factor: int, groups: list[_Group]) -> str:
        """Return the name of an operand in coarser cuts; no live block has it."""
        tensor = operand.template.tensor
        coarse = None if operand.dim is None else self.tables.coarser(tensor, operand.dim, factor)
        if coarse is None:
            return tensor

        def is_free(name: str) -> bool:
            blocks = (
                block_name(name, operand.template.index(group.slices(self.dim, factor)))
                for group in groups
            )
            return all(
                group.line.is_absent(block, group.last)
                for group, block in zip(groups, blocks, strict=True)
            )

        return self.tables.name(tensor, coarse, is_free)

    def _write(
        self, group: _Group, operands: list[_Operand], names: list[str], factor: int
    ) -> None:
        """Replace the last product of a group by the merged one, and remove the others."""
        line, rank = group.line, group.line.rank.rank
        slices = group.slices(self.dim, factor)
        joins, cuts, blocks = list[Join](), list[Cut](), list[str]()
        # A join lists its parts by their place in the whole, in whatever order they were computed.
        in_order = sorted(group.products, key=lambda pair: (pair[1].sub_operator or {})[self.dim])
        for operand, name in zip(operands, names, strict=True):
            if operand.dim is None:
                blocks += group.blocks(operand)
                continue
            whole = block_name(name, operand.template.index(slices))
            parts = tuple(operand.block(node) for _, node in in_order)
            blocks.append(whole)
            joins += [Join(parts, whole, in_place=True)] if operand.place is not None else []
            cuts.append(Cut(whole, parts, in_place=True))
            for block, place in group.blocks(operand).items():
                for use in line.between(block, place, group.last):
                    if type(line.nodes[use]) is Free:
                        # x[0,0] was freed after its own product; now the merged one reads it, and
                        # frees it behind.
                        self.moved[rank][use] = max(group.last, self.moved[rank].get(use, 0))
        *reads, made = blocks
        _, last = group.products[-1]
        merged = replace(last, reads=tuple(reads), accumulates=made, sub_operator=slices)
        self.edits[rank] |= {place: [] for place, _ in group.products}
        self.edits[rank][group.last] = [*joins, merged, *cuts]
