"""Writes the instructions of transfers and products in chunks, and the tables that name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import RankList
from primepar.passes.chunk_sites import GatherSite, ReductionSite
from primepar.passes.in_place_parts import Edits
from primepar.passes.program_tables import Tables, template_text
from primepar.schedule.operators import block_name
from primepar.schedule.program import Compute, Cut, Free, Instruction, IRecv, ISend, Join, Wait
from primepar.schedule.signature import Tensor

Line = tuple[int, ...]


def refined(line: Line, chunks: int) -> Line:
    """Return cuts with every slice in some chunks, as equal as they can be."""
    cuts = [
        first + number * (end - first) // chunks
        for first, end in pairwise(line)
        for number in range(chunks)
    ]
    return (*cuts, line[-1])


@dataclass
class Chunking:
    """A phase that is cut along a dim: the names of its tensors in chunks.

    `line` are the cuts of the dim after it, `chunks` of them in each slice before.
    """

    tables: Tables
    phase: str
    dim: str
    line: Line
    chunks: int
    _names: dict[str, str] = field(default_factory=dict)

    @cached_property
    def templates(self) -> tuple[Any, ...]:
        """The templates of the phase before it is cut: what it reads, then what it writes."""
        return self.tables.phases[self.phase].templates

    def position(self, tensor: str) -> int | None:
        """The position of the dim in a tensor of the phase, None if it does not have it."""
        template = next(known for known in self.templates if known.tensor == tensor)
        dims = [dim for dim, _ in template.entries]
        return dims.index(self.dim) if self.dim in dims else None

    def name(self, tensor: str) -> str:
        """The name of a tensor of the phase in chunks; itself if it does not have the dim."""
        position = self.position(tensor)
        return tensor if position is None else self.recut(tensor, position)

    def recut(self, tensor: str, position: int) -> str:
        """Return the name of a tensor that is cut along one of its dims as the phase is."""
        if tensor not in self._names:
            known = self.tables.tensors[tensor]
            cuts = (*known.cuts[:position], self.line, *known.cuts[position + 1 :])
            chunked = Tensor(cuts, known.of or tensor, known.wide)
            self._names[tensor] = self._declared(known.of or tensor, chunked)
        return self._names[tensor]

    def _declared(self, base: str, chunked: Tensor) -> str:
        name, number = f"{base}.chunks", 1
        while self.tables.tensors.setdefault(name, chunked) != chunked:
            name, number = f"{base}.chunks{number}", number + 1
        return name

    def inside(self, block: str, position: int) -> list[tuple[int, ...]]:
        """Return the indices of the chunks of a block, in order."""
        tensor, _, text = block.rpartition("[")
        index = tuple(map(int, text[:-1].split(",")))
        cuts = self.tables.tensors[tensor].cuts[position]
        number = index[position]
        slices = range(self.line.index(cuts[number]), self.line.index(cuts[number + 1]))
        return [(*index[:position], chunk, *index[position + 1 :]) for chunk in slices]

    def parts(self, block: str, position: int) -> tuple[str, ...]:
        """Return the names of the chunks of a block."""
        name = self.recut(block.rpartition("[")[0], position)
        return tuple(block_name(name, index) for index in self.inside(block, position))

    def pieces(self, node: Compute) -> list[tuple[str, tuple[str, ...]]]:
        """Return the operands of a product that are cut, with their chunks; the result is last."""
        cut = []
        for block, template in zip((*node.reads, node.accumulates), self.templates, strict=True):
            position = self.position(template.tensor)
            if position is not None:
                cut.append((block, self.parts(block, position)))
        return cut

    def product(self, node: Compute, chunk: int) -> Compute:
        """Return the product of one chunk, a slice of the cut dim."""
        slices = {**(node.sub_operator or {}), self.dim: chunk}
        *reads, written = (
            block_name(self.name(template.tensor), template.index(slices))
            for template in self.templates
        )
        return replace(node, reads=tuple(reads), accumulates=written, sub_operator=slices)

    def slices(self, node: Compute) -> range:
        """Return the chunks of a product."""
        block, template = next(
            (block, template)
            for block, template in zip((*node.reads, node.accumulates), self.templates, strict=True)
            if self.position(template.tensor) is not None
        )
        position = self.position(template.tensor)
        assert position is not None
        indices = self.inside(block, position)
        return range(indices[0][position], indices[-1][position] + 1)

    def sign(self) -> None:
        """Change the signature and the grid of the phase."""
        texts = [template_text(self.name(known.tensor), known) for known in self.templates]
        signature = self.tables.phases[self.phase]
        self.tables.phases[self.phase] = replace(
            signature, reads=tuple(texts[:-1]), writes=texts[-1]
        )
        self.tables.grid[self.phase][self.dim] = len(self.line) - 1


@dataclass(frozen=True)
class GatherRewrite:
    """A gather and its product on one rank, as a ring of chunks."""

    chunking: Chunking
    site: GatherSite
    node: Compute
    rank: int

    def before(self) -> Edits:
        """Return what is inserted in front of other positions: nothing."""
        return {}

    def edits(self) -> Edits:
        """Return the ring, in place of everything from the gather to the product."""
        site, pieces = self.site, self.chunking.pieces(self.node)
        kept = [(block, parts) for block, parts in pieces if block != site.whole]
        written = self.node.accumulates
        nodes: list[Instruction] = [
            Cut(block, parts, in_place=True) for block, parts in kept if block != written
        ]
        nodes += [*self._own(), *self._ring()]
        nodes += [Join(parts, block, in_place=True) for block, parts in pieces]
        edits: Edits = {place: [] for place in range(site.first, site.product)}
        return {**edits, site.product: nodes}

    def _own(self) -> list[Instruction]:
        """Cut the rank's part into its chunks."""
        part = self.site.parts[self.site.owners.index(self.rank)]
        return [Cut(part, tuple(map(self._block, self._chunks_of(self.rank))), in_place=True)]

    def _chunks_of(self, owner: int) -> list[int]:
        """Return the chunks of a rank's part, as slices of the cut dim."""
        first = self.chunking.slices(self.node)[0]
        member, chunks = self.site.owners.index(owner), self.chunking.chunks
        return list(range(first + member * chunks, first + (member + 1) * chunks))

    def _block(self, chunk: int) -> str:
        """Return the chunk of the gathered operand."""
        return self.chunking.product(self.node, chunk).reads[self.node.reads.index(self.site.whole)]

    def _ring(self) -> list[Instruction]:
        """Multiply the chunks of one member after another; pass on what comes from the next."""
        owners = self.site.owners
        member, count = owners.index(self.rank), len(owners)
        nodes: list[Instruction] = []
        sends: list[Instruction] = []
        for step in range(count):
            chunks = self._chunks_of(owners[(member + step) % count])
            arriving = self._chunks_of(owners[(member + step + 1) % count])
            for chunk, next_chunk in zip(chunks, arriving, strict=True):
                nodes += [Wait(self._request("<", chunk))] * (step > 0)
                if step < count - 1:
                    nodes += self._posts(chunk, next_chunk)
                    sends.append(Wait(self._request(">", chunk)))
                nodes.append(self.chunking.product(self.node, chunk))
        return [*nodes, *sends]

    def _posts(self, chunk: int, next_chunk: int) -> list[Instruction]:
        """Send a chunk to the member before, and receive one from the member after."""
        owners = self.site.owners
        member, count = owners.index(self.rank), len(owners)
        source, target = owners[(member + 1) % count], owners[member - 1]
        into, out = self._request("<", next_chunk), self._request(">", chunk)
        line = self.site.communicator
        return [
            IRecv(source, self._block(next_chunk), next_chunk, line, request=into),
            ISend(target, self._block(chunk), chunk, line, request=out),
        ]

    def _request(self, way: str, chunk: int) -> str:
        """Return the request of a message, `blocks.0.fc1 forward<3`: its operator comes first."""
        operator, _, phase = self.chunking.phase.rpartition(".")
        return f"{operator} {phase}{way}{chunk}".lstrip()


@dataclass(frozen=True)
class ReductionRewrite:
    """A product and its reduction on one rank, chunk after chunk."""

    chunking: Chunking
    site: ReductionSite
    node: Compute
    line: RankList

    def edits(self) -> Edits:
        """Return products and reductions in turn, in place of the product."""
        site, chunking = self.site, self.chunking
        operands = chunking.pieces(self.node)[:-1]
        nodes: list[Instruction] = [Cut(block, parts, in_place=True) for block, parts in operands]
        ends: list[Instruction] = []
        for chunk in chunking.slices(self.node):
            product_of_chunk = chunking.product(self.node, chunk)
            calls, new_ends = self._reduced(product_of_chunk.accumulates)
            # The transfer before this one ends here: two chunks are there at a time.
            nodes += [product_of_chunk, *calls, *ends]
            ends = new_ends
        nodes += [Join(parts, block, in_place=True) for block, parts in operands]
        removed = [site.call, *site.frees, *([] if site.cut is None else [site.cut])]
        return {**{place: [] for place in removed}, site.product: [*nodes, *ends]}

    def before(self) -> Edits:
        """Return the join of the reduced chunks, in front of their next use."""
        next_use = self.line.after(self.site.kept, self.site.call)
        place = len(self.line.nodes) if next_use is None else next_use
        parts = self.chunking.parts(self.site.kept, self._position)
        return {place: [Join(parts, self.site.kept, in_place=True)]}

    @property
    def _position(self) -> int:
        position = self.chunking.position(self.chunking.templates[-1].tensor)
        assert position is not None
        return position

    def _reduced(self, chunk: str) -> tuple[list[Instruction], list[Instruction]]:
        """Return how the reduction of one chunk of the result begins, and how it ends.

        An all-reduce needs no other memory, and is posted by the pass `overlap`.
        """
        site = self.site
        call: Any = self.line.nodes[site.call]
        if site.cut is None:
            return [replace(call, block=chunk)], []
        number = self.chunking.inside(site.result, self._position).index(_index(chunk))
        blocks = tuple(self.chunking.parts(part, self._position)[number] for part in site.parts)
        kept = blocks[site.parts.index(site.kept)]
        request = f"reduce_scatter {kept}"
        post = replace(call, blocks=blocks, block=kept, request=request)
        frees = [Free(block) for block in blocks if block != kept]
        return [Cut(chunk, blocks, in_place=True), post], [Wait(request), *frees]


def _index(block: str) -> tuple[int, ...]:
    return tuple(map(int, block.rpartition("[")[2][:-1].split(",")))
