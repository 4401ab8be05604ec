"""Cuts transfers, and the products next to them, into chunks: one travels while one is computed.

The all-gather of an operand and the product that reads it become a ring. A device multiplies its
own chunks first, and then those of the next devices. What it receives at one step it passes on and
multiplies at the next, as in FLUX's all-gather (`primepar.partition.flux_gather`). A product and
the reduction of its result are cut along a dim of the result that the reduction does not scatter:
chunk after chunk is computed and reduced. The pass `overlap` then posts the reductions, and waits
for each of them late.

Why it is correct: a product of matrices is dense along each dim, so the product of chunks is made
of chunks of the product, or is summed of them. A reduction adds element by element. In the ring,
device r receives at step k what device r + 1 had at step k - 1: its own chunks at k = 1. So at step
k it has the chunks of device r + k. Every rank of a group takes part with the same chunks, in the
same order, so the sends and receives match and the calls of collectives do too. The blocks are
cut and joined in place, before and after.

    all_gather      x[1] -> x[0] x[1]            isend           x[1] -> 0
    join            x[0] x[1] -> x.joined        irecv           x[0] <- 0
    linear.forward  y += x.joined * w      ->    linear.forward  y.chunks[1] += x[1] * w
                                                 wait            both
                                                 linear.forward  y.chunks[0] += x[0] * w
                                                 join            x.joined and y, in place

Source: Chang et al., FLUX, arXiv 2406.06858, where one kernel does this; as a pass it is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from primepar.passes.block_uses import Rank
from primepar.passes.chunk_rewrites import Chunking, GatherRewrite, ReductionRewrite, refined
from primepar.passes.chunk_sites import GatherSite, ReductionSite, SiteFinder, Sites
from primepar.passes.hiding_work import HidingWork, work_after, work_before
from primepar.passes.in_place_parts import tidied
from primepar.passes.program_tables import Tables
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import AllReduce, Compute, Instruction, Program

Transfer = Literal["all_gather", "all_reduce", "reduce_scatter"]


class TransferPair(NamedTuple):
    """A product and the transfer next to it, as one device sees them; sizes in elements."""

    phase: str
    transfer: Transfer
    ranks: tuple[int, ...]
    """The members of the transfer's group."""
    reads: tuple[int, int]
    """The operands of the product, after the gather; the one that is cut comes first."""
    result: int
    cut_result: bool
    """Whether the chunks have parts of the result, or terms of it."""
    most: int
    """The largest number of chunks."""
    earlier: HidingWork = HidingWork()
    """What can hide a gather that stays whole; a ring starts after it."""
    later: HidingWork = HidingWork()
    """What can hide the end of a reduction."""


ChunkCount = Callable[[TransferPair], int]
"""The chunks of the part of one device: 0 leaves a pair as it is, and so does 1 a reduction."""


def chunk_transfers(program: Program, chunks: int | ChunkCount) -> Program:
    """Return the program with transfers and their products cut into chunks.

    `chunks` is the number for every pair, or chooses it for each. A slice of fewer elements is cut
    into single ones. With 1 a gather becomes a ring of whole parts, and a reduction stays.
    """
    tables = Tables(program)
    cutting = _Cutting(tables, chunks if callable(chunks) else lambda pair: int(chunks))
    return cutting.program() if cutting.cuts() else program


@dataclass(frozen=True)
class _Cut:
    """The dim of a phase that is cut, and its slices before and after."""

    dim: str
    line: tuple[int, ...]
    """The cuts of the parts that devices have."""
    most: int


class _Cutting:
    def __init__(self, tables: Tables, count: ChunkCount) -> None:
        self.tables, self.count = tables, count
        self.meaning = Meaning(tables.program)
        self.finder = SiteFinder(tables)
        lists = [list(nodes) for nodes in tables.program.programs]
        self.edits: list[dict[int, list[Instruction]]] = [{} for _ in lists]
        self.before: list[dict[int, list[Instruction]]] = [{} for _ in lists]
        """Instructions to be inserted in front of a position."""

    def cuts(self) -> bool:
        """Cut all pairs; return whether there are any."""
        for phase, sites in list(self.finder.sites()):
            cut = self._cut(phase, sites)
            if cut is None:
                continue
            chunks = min(cut.most, self.count(self._pair(phase, sites, cut)))
            gathers = isinstance(_first(sites)[1], GatherSite)
            if chunks >= (1 if gathers else 2):
                self._write(phase, sites, cut, chunks)
        return any(self.edits)

    def program(self) -> Program:
        """Return the program with its pairs cut."""
        lists = []
        for rank, nodes in enumerate(self.tables.program.programs):
            done: list[Instruction] = []
            for place, node in enumerate(nodes):
                done += self.before[rank].get(place, [])
                done += self.edits[rank].get(place, [node])
            done += self.before[rank].get(len(nodes), [])
            lists.append(tidied(done, Rank(rank)))
        return self.tables.program_of(lists)

    def _node(self, rank: int, site: GatherSite | ReductionSite) -> Compute:
        node = self.tables.program.programs[rank][site.product]
        assert isinstance(node, Compute)
        return node

    def _cut(self, phase: str, sites: Sites) -> _Cut | None:
        """Return the dim to be cut; None unless all tensors of the phase have the same cuts."""
        *reads, writes = self.tables.phases[phase].templates
        rank, site = _first(sites)
        node = self._node(rank, site)
        if isinstance(site, GatherSite):
            tensor, template = _tensor(site.parts[0]), reads[node.reads.index(site.whole)]
        else:
            tensor, template = _tensor(site.kept), writes
        known = self.tables.tensors.get(tensor)
        dims = [dim for dim, _ in template.entries]
        if known is None or len(known.cuts) != len(dims) or "" in dims:
            return None
        differing = _differing(site.parts)
        scatters = isinstance(site, ReductionSite) and len(site.parts) > 1
        kept = [place for place in range(len(dims)) if (place in differing) != scatters]
        place = kept[0] if differing else 0
        line = known.cuts[place]
        if (differing and len(differing) != 1) or not self._agree(phase, dims[place], line):
            return None
        return _Cut(dims[place], line, min(end - first for first, end in pairwise(line)))

    def _agree(self, phase: str, dim: str, line: tuple[int, ...]) -> bool:
        """Return whether every tensor of a phase is cut along a dim where `line` is."""
        for template in self.tables.phases[phase].templates:
            dims = [name for name, _ in template.entries]
            known = self.tables.tensors.get(template.tensor)
            if dim in dims and (known is None or not {*known.cuts[dims.index(dim)]} <= {*line}):
                return False
        return True

    def _pair(self, phase: str, sites: Sites, cut: _Cut) -> TransferPair:
        *reads, writes = self.tables.phases[phase].templates
        rank, site = _first(sites)
        node = self._node(rank, site)
        sizes = [self.meaning.elements(block) or 0 for block in node.reads]
        if cut.dim not in reads[0].dims:
            sizes.reverse()
        first, second = sizes
        transfer: Transfer = "all_gather"
        if isinstance(site, ReductionSite):
            call = self.tables.program.programs[rank][site.call]
            transfer = "all_reduce" if isinstance(call, AllReduce) else "reduce_scatter"
        result = self.meaning.elements(node.accumulates) or 0
        is_cut = cut.dim in writes.dims
        earlier = later = HidingWork()
        about = self.finder.lines[rank], self.tables, self.meaning
        if isinstance(site, ReductionSite):
            later = work_after(site, *about)
        else:
            earlier = work_before(site, *about)
        return TransferPair(
            phase, transfer, site.ranks, (first, second), result, is_cut, cut.most, earlier, later
        )

    def _write(self, phase: str, sites: Sites, cut: _Cut, chunks: int) -> None:
        chunking = Chunking(self.tables, phase, cut.dim, refined(cut.line, chunks), chunks)
        numbered = [(rank, site) for rank, of_rank in enumerate(sites) for site in of_rank]
        for rank, site in numbered:
            node, line = self._node(rank, site), self.finder.lines[rank]
            rewrite = (
                GatherRewrite(chunking, site, node, rank)
                if isinstance(site, GatherSite)
                else ReductionRewrite(chunking, site, node, line)
            )
            self.edits[rank].update(rewrite.edits())
            for place, nodes in rewrite.before().items():
                self.before[rank].setdefault(place, []).extend(nodes)
        chunking.sign()


def _first(sites: Sites) -> tuple[int, GatherSite | ReductionSite]:
    """Return the first site, and its rank."""
    return next((rank, of_rank[0]) for rank, of_rank in enumerate(sites) if of_rank)


def _tensor(block: str) -> str:
    return block.rpartition("[")[0]


def _differing(blocks: tuple[str, ...]) -> list[int]:
    """Return the dims along which blocks differ."""
    indices = [block.rpartition("[")[2][:-1].split(",") for block in blocks]
    return [dim for dim, numbers in enumerate(zip(*indices, strict=True)) if len(set(numbers)) > 1]
