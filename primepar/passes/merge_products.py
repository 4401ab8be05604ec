"""Products of adjoining slices as one product.

Where every rank computes the slices of a dim of a phase in aligned groups of `f` neighbours, the
phase gets a grid that is coarser by `f` along that dim. The product stands where the last of its
group stood: operands that are cut along the dim are joined in place before it and cut in place
after it, and so is what it makes. Cuts and joins that undo each other are left out. The phases are
those with a kernel `linear.*`; the programs of one operator get signatures, if they have a shape.

Why it is right: a product of matrices is dense along each dim, so that of whole slices is what
those of their parts make side by side, or add up to where the dim is summed over. A group is merged
only if nothing else changes its operands, or touches what it makes, from its first product to its
last; if nothing that is joined is in flight there; and if what it makes along the dim is new.

    forward  y[0,0] += x[0,0] * w[0,0]         join     x[0,0] x[1,0] -> x.joined[0,0], in place
    forward  y[1,0] += x[1,0] * w[0,0]   ->    forward  y.joined[0,0] += x.joined[0,0] * w[0,0]
                                               cut      x.joined[0,0] -> x[0,0] x[1,0], in place
                                               cut      y.joined[0,0] -> y[0,0] y[1,0], in place

Memory: operands that were freed between the products of a group go after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited, tidied
from primepar.passes.program_tables import Tables, template_text
from primepar.schedule.operators import block_name
from primepar.schedule.program import Compute, Cut, Free, Instruction, Join, Program
from primepar.schedule.program_uses import initial_blocks
from primepar.schedule.signature import Signature, Template, multiplies

Products = list[tuple[int, Compute]]
"""Places and products of a phase on one rank."""


def merge_products(program: Program) -> Program:
    """Products of adjoining slices merged wherever all ranks can."""
    tables = Tables(program)
    lists: list[list[Instruction]] = [list(nodes) for nodes in program.programs]
    dims = dict.fromkeys(chain.from_iterable(tables.grid.values()))
    # What is summed over goes first: only then is every output of the other dims a new one.
    lines = _Lines(lists, initial_blocks(program))
    rounds = [_Round(tables, lines, dim, summed) for summed in (True, False) for dim in dims]
    merged = [each for each in rounds if each.merges()]
    return tables.program_of(lists) if merged else program


@dataclass(frozen=True)
class _Operand:
    """One of the tensors of a phase, in its own cuts; `at` is the dim to be merged, if it has it.

    `place` is that of its block among those that a product reads, None for what it makes.
    """

    template: Template
    place: int | None
    at: int | None

    def block(self, node: Compute) -> str:
        """Its block in a product."""
        return node.accumulates if self.place is None else node.reads[self.place]


@dataclass(frozen=True)
class _Group:
    """Products of one rank that become one, with their places in its list."""

    line: RankList
    products: Products

    @property
    def last(self) -> int:
        """Where the merged product stands."""
        return self.products[-1][0]

    def blocks(self, operand: _Operand) -> dict[str, int]:
        """Blocks of an operand with the places of the products that first use them."""
        return {operand.block(node): place for place, node in reversed(self.products)}

    def merges(self, operands: Sequence[_Operand]) -> bool:
        """Whether one product can stand where the last one stands."""
        return not self.line.is_waiting(self.products[0][0], self.last) and all(
            map(self._fits, operands)
        )

    def _fits(self, operand: _Operand) -> bool:
        blocks = self.blocks(operand)
        if operand.at is None:
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
        """Whether nothing that matters happens to a block from its product to the last one."""
        own = {at for at, _ in self.products}
        others = [at for at in self.line.between(block, place, self.last) if at not in own]
        if operand.place is None:
            return not others
        nodes: Sequence[Any] = self.line.nodes
        return all(
            (type(nodes[at]) is Free and operand.at is not None)
            or (type(nodes[at]) is Compute and nodes[at].accumulates != block)
            for at in others
        )

    def frees(self, operand: _Operand) -> list[int]:
        """Where an operand's blocks are freed between the products."""
        return [
            at
            for block, place in self.blocks(operand).items()
            for at in self.line.between(block, place, self.last)
            if type(self.line.nodes[at]) is Free
        ]


class _Lines:
    """The list of every rank, with its places made when they are first asked for."""

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
    """Merges along one dim, in the tables and lists that it is given.

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
        """On every rank the place of a free -> that of the last product that it comes after now."""

    def merges(self) -> bool:
        """Merge all phases that can be; whether there are any."""
        edits: list[Edits] = [{} for _ in self.lists]
        for phase, ranks in self._candidates():
            signature = self.tables.phases[phase]
            *reads, writes = signature.templates
            operands = [self._operand(each, place) for place, each in enumerate(reads)]
            operands.append(self._operand(writes, None))
            slices = self.tables.grid[phase][self.dim]
            for factor in range(slices, 1, -1):
                groups = self._groups(ranks, slices, factor)
                if groups and all(group.merges(operands) for group in chain(*groups)):
                    self._merge(phase, operands, factor, groups, edits)
                    break
        for rank, own in enumerate(edits):
            for place, after in self._moved[rank].items():
                own[place] = []
                own[after].append(self.lists[rank][place])
            if own:
                self.lists[rank] = tidied(edited(self.lists[rank], own), self.lines.ranks[rank])
        return any(edits)

    def _candidates(self) -> Iterator[tuple[str, list[Products]]]:
        """Phases that every rank computes for several slices, if at all."""
        found: dict[str, list[Products]] = {
            phase: [[] for _ in self.lists]
            for phase, signature in self.tables.phases.items()
            if self.tables.grid.get(phase, {}).get(self.dim, 1) > 1
            and (self.dim not in signature.templates[-1].dims) == self.summed
            and self._is_linear(signature)
        }
        for rank, nodes in enumerate(self.lists):
            for place, node in enumerate(nodes):
                if type(node) is Compute and node.phase in found:
                    found[node.phase][rank].append((place, node))
        for phase, ranks in found.items():
            if all(len(products) != 1 for products in ranks) and any(ranks):
                yield phase, ranks

    def _is_linear(self, signature: Signature) -> bool:
        entries = [entry for each in signature.templates for entry in each.entries]
        return multiplies(signature.kernel) and all(number == 1 for dim, number in entries if dim)

    def _operand(self, template: Template, place: int | None) -> _Operand:
        dims = [dim for dim, _ in template.entries]
        return _Operand(template, place, dims.index(self.dim) if self.dim in dims else None)

    def _groups(self, ranks: list[Products], slices: int, factor: int) -> list[list[_Group]]:
        """The groups of every rank; none where a group is not whole."""
        if slices % factor:
            return []
        found: list[list[_Group]] = []
        for rank, products in enumerate(ranks):
            parts: dict[tuple[int, ...], Products] = {}
            for place, node in products:
                own = node.sub_operator or {}
                key = tuple(at // factor if dim == self.dim else at for dim, at in own.items())
                parts.setdefault(key, []).append((place, node))
            if any(len(part) != factor for part in parts.values()):
                return []
            found.append([_Group(self.lines[rank], part) for part in parts.values()])
        return found

    def _merge(
        self,
        phase: str,
        operands: list[_Operand],
        factor: int,
        groups: list[list[_Group]],
        edits: list[Edits],
    ) -> None:
        """Write the merged products of a phase into the edits of every rank, and its tables."""
        names = {each: self._coarse(each, factor, groups) for each in operands}
        for rank, own in enumerate(groups):
            for group in own:
                edits[rank].update(self._edits(group, operands, names, factor))
        texts = [template_text(names[each], each.template) for each in operands]
        known = self.tables.phases[phase]
        self.tables.phases[phase] = Signature(
            tuple(texts[:-1]), texts[-1], known.reduction, known.kernel
        )
        self.tables.grid[phase][self.dim] //= factor

    def _coarse(self, operand: _Operand, factor: int, groups: list[list[_Group]]) -> str:
        """What an operand is called in coarser cuts: a name that nothing there has."""
        tensor = operand.template.tensor
        coarse = None if operand.at is None else self.tables.coarser(tensor, operand.at, factor)
        if coarse is None:
            return tensor

        def is_free(name: str) -> bool:
            return all(
                group.line.is_absent(self._joined(group, operand, name, factor), group.last)
                for group in chain(*groups)
            )

        return self.tables.name(tensor, coarse, is_free)

    def _joined(self, group: _Group, operand: _Operand, name: str, factor: int) -> str:
        """The coarse block of a group."""
        slices = dict(group.products[0][1].sub_operator or {})
        slices[self.dim] //= factor
        return block_name(name, operand.template.index(slices))

    def _edits(
        self, group: _Group, operands: list[_Operand], names: dict[_Operand, str], factor: int
    ) -> Edits:
        """The group's last product is the merged one; the others are gone."""
        rank = group.line.rank.rank
        joins: list[Instruction] = []
        cuts: list[Instruction] = []
        blocks = {}
        edits: Edits = {place: [] for place, _ in group.products}
        for operand in operands:
            if operand.at is None:
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
        edits[group.last] = [*joins, Compute(tuple(reads), made, last.phase, slices), *cuts]
        return edits

    def _parts(self, group: _Group, operand: _Operand) -> tuple[str, ...]:
        products = sorted(group.products, key=lambda each: (each[1].sub_operator or {})[self.dim])
        return tuple(operand.block(node) for _, node in products)
