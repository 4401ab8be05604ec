"""Cuts transfers, and the products next to them, into chunks: one travels while one is computed.

The all-gather of an operand and the product that reads it become a ring. A device multiplies its
own chunks first, and then those of the next devices. What it receives at one step it passes on and
multiplies at the next, as in FLUX's all-gather (`primepar.partition.flux`). A product and
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

A gather site is an all-gather, the join of what it gathers, and the product that reads the whole.
Between two devices the all-gather is a message each way. A reduction site is a product, and the
all-reduce or the reduce-scatter of its result; before a reduce-scatter the result is cut. Next to a
site, other computes hide the transfer: before a gather those that do not need it, after a reduction
those that do not use its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import Literal, NamedTuple

from msgspec.structs import replace

from primepar.passes.block_uses import LOCAL, RankList, rank_lists
from primepar.passes.calls import Meeting, meetings
from primepar.passes.in_place_parts import Edits, edited, tidied
from primepar.passes.program_tables import Tables, divides_nothing, template_text
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import block_name
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Collective,
    Compute,
    Cut,
    Free,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    ReduceScatter,
    Wait,
)
from primepar.schedule.signature import Template, Tensor, multiplies

Line = tuple[int, ...]
"""The cuts of one dim."""
Transfer = Literal["all_gather", "all_reduce", "reduce_scatter"]


class HidingWork(NamedTuple):
    """Computes of a device that run while a transfer next to them travels."""

    computes: int = 0
    elements: int = 0
    """Of all blocks that these computes name."""
    operations: int = 0
    """Of the products among them."""


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
MOST_CHUNKS = 64
"""Of the part of one device."""


def chunk_transfers(program: Program, chunks: int | ChunkCount) -> Program:
    """Return the program with transfers and their products cut into chunks.

    `chunks` is the number for every pair, or chooses it for each. A slice of fewer elements is cut
    into single ones. With 1 a gather becomes a ring of whole parts, and a reduction stays. A
    program without `final` stays: its results may be needed at the end, whole.
    """
    if program.final is None:
        return program
    tables, meaning = Tables(program), Meaning(program)
    finder = SiteFinder(tables)
    edits: list[Edits] = [{} for _ in program.programs]
    joins: list[Edits] = [{} for _ in program.programs]
    """Joins of reduced chunks, in front of the instruction at a position."""
    for phase, sites in list(finder.sites()):
        dim, line = _cut(tables, phase, sites[0])
        if not line:
            continue
        pair = _pair(finder, phase, sites[0], dim, line, meaning)
        number = min(pair.most, chunks(pair) if callable(chunks) else int(chunks))
        # A ring of whole parts already overlaps: one part travels while another is multiplied. A
        # reduction of one chunk is what is there.
        if number < (1 if sites[0].gathers else 2):
            continue
        chunked = Chunked(tables, phase, dim, refined(line, number), number)
        for site in sites:
            # The transfer goes, and its product's place gets the ring, or the chunks with their
            # reductions.
            edits[site.rank] |= {place: [] for place in site.removed}
            written = ring(chunked, site) if site.gathers else reduced(chunked, site)
            edits[site.rank][site.product] = list(written)
            if not site.gathers:
                place, join = _join(chunked, site, finder.lines[site.rank])
                joins[site.rank].setdefault(place, []).append(join)
        chunked.sign()
    if not any(edits):
        return program
    for known, replaced, joined in zip(finder.lines, edits, joins, strict=True):
        for place, nodes in joined.items():
            replaced[place] = [*nodes, *replaced.get(place, known.nodes[place : place + 1])]
    pairs = zip(finder.lines, edits, strict=True)
    return tables.program_of([tidied(edited(known.nodes, one), known.rank) for known, one in pairs])


def refined(line: Line, chunks: int) -> Line:
    """Return cuts with every slice in some chunks, as equal as they can be."""
    cuts = [
        # 7 elements in 3 chunks end at 2, 4 and 7: no two differ by more than one.
        first + number * (end - first) // chunks
        for first, end in pairwise(line)
        for number in range(chunks)
    ]
    return (*cuts, line[-1])


def _cut(tables: Tables, phase: str, site: TransferSite) -> tuple[str, Line]:
    """Return the dim to be cut and the cuts of the parts that devices have.

    No cuts where a tensor of the phase has others. A gather is cut along the dim in which its parts
    differ, a reduction along another one: what a reduce-scatter gives to each rank stays whole.
    """
    blocks = (*site.node.reads, site.node.accumulates)
    template = tables.phases[phase].templates[blocks.index(site.whole)]
    dims = [dim for dim, _ in template.entries]
    known = tables.tensors.get(site.parts[0].rpartition("[")[0])
    if known is None or len(known.cuts) != len(dims) or "" in dims:
        return "", ()
    indices = zip(*map(_index, site.parts), strict=True)
    differing = [place for place, numbers in enumerate(indices) if len(set(numbers)) > 1]
    # Parts that differ in rows and columns are a grid, and a ring goes along one line.
    if len(differing) > 1:
        return "", ()
    # Rows go to ranks by the reduce-scatter, so the chunks are columns: each is a part of every
    # rank's rows.
    scatters = not site.gathers and len(site.parts) > 1
    kept = [place for place in range(len(dims)) if (place in differing) != scatters]
    place = kept[0] if differing else 0
    dim, line = dims[place], known.cuts[place]
    for template in tables.phases[phase].templates:
        dims = [name for name, _ in template.entries]
        tensor = tables.tensors.get(template.tensor)
        # Every slice of the other tensors must end at a cut of this one, or a chunk would be in two
        # blocks of them.
        if dim in dims and (tensor is None or not {*tensor.cuts[dims.index(dim)]} <= {*line}):
            return "", ()
    return dim, line


def _pair(
    finder: SiteFinder, phase: str, site: TransferSite, dim: str, line: Line, meaning: Meaning
) -> TransferPair:
    reads, writes = finder.tables.phases[phase].templates[:-1], site.node.accumulates
    sizes = [meaning.elements(block) or 0 for block in site.node.reads]
    first, second = sizes if dim in reads[0].dims else sizes[::-1]
    kinds: dict[bool, Transfer] = {True: "all_reduce", False: "reduce_scatter"}
    work = finder.hiding_work(site, meaning)
    return TransferPair(
        phase,
        "all_gather" if site.gathers else kinds[isinstance(site.call, AllReduce)],
        site.ranks,
        (first, second),
        meaning.elements(writes) or 0,
        dim in finder.tables.phases[phase].templates[-1].dims,
        min(end - start for start, end in pairwise(line)),
        **{"earlier" if site.gathers else "later": work},
    )


@dataclass
class Chunked:
    """A phase that is cut along a dim: the names of its tensors and blocks in chunks.

    `line` are the cuts of the dim after it, `chunks` of them in each slice before. Example: x in
    rows (0, 4, 8), two chunks a slice, is x.chunks in rows (0, 2, 4, 6, 8); the chunks of x[1,0]
    are x.chunks[2,0] and x.chunks[3,0].
    """

    tables: Tables
    phase: str
    dim: str
    line: Line
    chunks: int

    def __post_init__(self) -> None:
        self.templates: Sequence[Template] = self.tables.phases[self.phase].templates
        """Of the phase before it is cut: what it reads, then what it writes."""
        self._names: dict[str, str] = {}

    def position(self, template: Template) -> int | None:
        """Return the position of the dim in a tensor of the phase; None if it is not there."""
        dims = [dim for dim, _ in template.entries]
        return dims.index(self.dim) if self.dim in dims else None

    def _name(self, template: Template) -> str:
        position = self.position(template)
        return template.tensor if position is None else self._recut(template.tensor, position)

    def _recut(self, tensor: str, position: int) -> str:
        """Return the name of a tensor that is cut along one of its dims as the phase is."""
        if tensor not in self._names:
            known = self.tables.tensors[tensor]
            cuts = (*known.cuts[:position], self.line, *known.cuts[position + 1 :])
            base = known.of or tensor
            chunked = Tensor(cuts, base, known.wide)
            name, number = f"{base}.chunks", 1
            # The name may belong to other cuts of the same tensor, of another site: then the next
            # number.
            while self.tables.tensors.setdefault(name, chunked) != chunked:
                name, number = f"{base}.chunks{number}", number + 1
            self._names[tensor] = name
        return self._names[tensor]

    def slices(self, block: str, position: int) -> range:
        """Return which slices of the cut dim the chunks of a block are."""
        number = _index(block)[position]
        cuts = self.tables.tensors[block.rpartition("[")[0]].cuts[position]
        return range(self.line.index(cuts[number]), self.line.index(cuts[number + 1]))

    def parts(self, block: str, position: int) -> tuple[str, ...]:
        """Return the names of the chunks of a block."""
        name, index = self._recut(block.rpartition("[")[0], position), _index(block)
        return tuple(
            block_name(name, (*index[:position], chunk, *index[position + 1 :]))
            for chunk in self.slices(block, position)
        )

    def cut(self, node: Compute) -> Iterator[tuple[str, int]]:
        """Yield the operands of a product that are cut, and along which dim; the result is last."""
        for block, template in zip((*node.reads, node.accumulates), self.templates, strict=True):
            position = self.position(template)
            if position is not None:
                yield block, position

    def products(self, node: Compute) -> list[Compute]:
        """Return the products of all chunks of a product."""
        *reads, writes = self.templates
        made = []
        for chunk in self.slices(*next(self.cut(node))):
            slices = {**(node.sub_operator or {}), self.dim: chunk}
            read = tuple(block_name(self._name(known), known.index(slices)) for known in reads)
            written = block_name(self._name(writes), writes.index(slices))
            made.append(replace(node, reads=read, accumulates=written, sub_operator=slices))
        return made

    def sign(self) -> None:
        """Change the signature and the grid of the phase."""
        *reads, writes = (template_text(self._name(known), known) for known in self.templates)
        signature = self.tables.phases[self.phase]
        self.tables.phases[self.phase] = replace(signature, reads=tuple(reads), writes=writes)
        self.tables.grid[self.phase][self.dim] = len(self.line) - 1


def ring(chunked: Chunked, site: TransferSite) -> Iterator[Instruction]:
    """Yield what replaces a gather and its product on one rank: a ring of chunks.

    One member's part is multiplied after another, the own one first. Rank 0 of three, one chunk
    each: post the receive of x[1] from 1 and the send of x[0] to 2, multiply x[0]; wait for x[1],
    post the receive of x[2] from 1 and the send of x[1] to 2, multiply x[1]; wait for x[2],
    multiply it. The waits for what is sent come last.
    """
    node, owners, chunks = site.node, site.ranks, chunked.chunks
    cuts = list(chunked.cut(node))
    products, gathered = chunked.products(node), node.reads.index(site.whole)
    blocks = [product.reads[gathered] for product in products]
    first = (products[0].sub_operator or {})[chunked.dim]
    operator, _, phase = chunked.phase.rpartition(".")
    line = site.call.communicator

    def request(way: str, chunk: int) -> str:
        """`blocks.0.fc1 forward<3`: the operator comes first."""
        return f"{operator} {phase}{way}{first + chunk}".lstrip()

    for block, position in cuts:
        if block not in (site.whole, node.accumulates):
            yield Cut(block, chunked.parts(block, position), in_place=True)
    member, count = owners.index(site.rank), len(owners)
    part = slice(member * chunks, (member + 1) * chunks)
    yield Cut(site.parts[member], tuple(blocks[part]), in_place=True)
    sent: list[Instruction] = []
    for step in range(count):
        for number in range(chunks):
            # Rank 0 of three at step 1: chunk of member 1, received at step 0 and passed on to rank
            # 2 now.
            chunk = (member + step) % count * chunks + number
            if step > 0:
                yield Wait(request("<", chunk))
            if step < count - 1:
                # What is multiplied next comes from the next member, who multiplies it now.
                arriving = (member + step + 1) % count * chunks + number
                source, target = owners[(member + 1) % count], owners[member - 1]
                yield IRecv(source, blocks[arriving], first + arriving, line,
                            request=request("<", arriving))  # fmt: skip
                yield ISend(target, blocks[chunk], first + chunk, line,
                            request=request(">", chunk))  # fmt: skip
                sent.append(Wait(request(">", chunk)))
            yield products[chunk]
    yield from sent
    for block, position in cuts:
        yield Join(chunked.parts(block, position), block, in_place=True)


def reduced(chunked: Chunked, site: TransferSite) -> Iterator[Instruction]:
    """Yield what replaces a product on one rank: products and reductions of chunks in turn.

    An all-reduce needs no other memory, and is posted by the pass `overlap`. A reduce-scatter of a
    chunk ends after the next product: two chunks are there at a time.
    """
    # Of the cut blocks the result comes last; the operands are cut before the first product.
    *operands, (_, position) = chunked.cut(site.node)
    for block, place in operands:
        yield Cut(block, chunked.parts(block, place), in_place=True)
    ends: list[Instruction] = []
    products = chunked.products(site.node)
    by_chunk = zip(*(chunked.parts(part, position) for part in site.parts), strict=True)
    for product, blocks in zip(products, by_chunk, strict=True):
        chunk, call = product.accumulates, site.call
        yield product
        if isinstance(call, AllReduce):
            yield replace(call, block=chunk)
            continue
        kept = blocks[site.parts.index(call.block)]
        request = f"reduce_scatter {kept}"
        yield Cut(chunk, blocks, in_place=True)
        yield replace(call, blocks=blocks, block=kept, request=request)
        # Of the chunk before: its reduction had this product to hide behind.
        yield from ends
        ends = [Wait(request), *(Free(block) for block in blocks if block != kept)]
    for block, place in operands:
        yield Join(chunked.parts(block, place), block, in_place=True)
    yield from ends


def _join(chunked: Chunked, site: TransferSite, line: RankList) -> tuple[int, Instruction]:
    """Return the join of the reduced chunks, and the position of the next use, in front of it."""
    position = chunked.position(chunked.templates[-1])
    assert position is not None
    kept = site.call.block
    use = line.after(kept, site.place)
    parts = chunked.parts(kept, position)
    return len(line.nodes) if use is None else use, Join(parts, kept, in_place=True)


def _index(block: str) -> tuple[int, ...]:
    return tuple(map(int, block.rpartition("[")[2][:-1].split(",")))


# Sites


@dataclass(frozen=True)
class TransferSite:
    """On one rank: the positions of a transfer, and of the product that is next to it."""

    gathers: bool
    """Whether the product reads what is gathered before it; else its result is reduced after it."""
    rank: int
    product: int
    node: Compute
    place: int
    """Position of the first post of a gather, or of the call of a reduction."""
    call: AllGather | ISend | AllReduce | ReduceScatter
    whole: str
    """The operand that is gathered and joined, or the result."""
    parts: tuple[str, ...]
    """Its parts by their place in it; the result itself for an all-reduce."""
    ranks: tuple[int, ...]
    """The members; of a gather the rank that has each part."""
    removed: tuple[int, ...]
    """Positions of the transfer with its waits, cut and join, and of frees of others' parts."""
    meets: tuple[object, ...]
    """The same on all members of a transfer, if their calls match."""


class SiteFinder:
    """Finds the sites of a program, phase by phase."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.lines = rank_lists(tables.program)
        self._met = [list(meetings(line.nodes, line.rank.rank)) for line in self.lines]

    def sites(self) -> Iterator[tuple[str, list[TransferSite]]]:
        """Yield the phases with products at sites of one kind alone, on every rank that has any."""
        products: dict[str, list[TransferSite | None]] = {
            phase: []
            for phase, signature in self.tables.phases.items()
            if multiplies(signature.kernel) and divides_nothing(signature)
        }
        for rank, line in enumerate(self.lines):
            for place, node in enumerate(line.nodes):
                if type(node) is Compute and node.phase in products:
                    site = self._gather(rank, place, node) or self._reduction(rank, place, node)
                    products[node.phase].append(site)
        for phase, sites in products.items():
            known = [site for site in sites if site is not None]
            if not known or len(known) < len(sites):
                continue
            # Of one kind, of one tensor, and with a site on every member that meets this one: were
            # one of them to keep its all-gather, the others would wait for it in the ring.
            kinds = {(site.gathers, site.parts[0].rpartition("[")[0]) for site in known}
            meets = {(site.rank, site.meets) for site in known}
            if len(kinds) == 1 and all(
                (member, site.meets) in meets for site in known for member in site.ranks
            ):
                yield phase, known

    def _gather(self, rank: int, place: int, node: Compute) -> TransferSite | None:
        nodes, met = self.lines[rank].nodes, self._met[rank]
        join = nodes[place - 1] if place else None
        if not isinstance(join, Join) or not join.in_place or join.block not in node.reads:
            return None
        first = place - 1
        # Back from the product: its join, the waits for what is joined, and the gather or the
        # exchange.
        while first and isinstance(nodes[first - 1], Wait):
            first -= 1
        waits = nodes[first : place - 1]
        call = nodes[first - 1] if first else None
        if isinstance(call, AllGather):
            first, requests = first - 1, [call.request] if call.request is not None else []
            if {*call.blocks} != {*join.blocks} or call.block != call.blocks[
                call.group.index(rank)
            ]:
                return None
            owners = tuple(call.group[call.blocks.index(part)] for part in join.blocks)
        else:
            # Two parts that two ranks exchange.
            first -= 2
            posts = nodes[max(first, 0) : first + 2]
            into = next((post for post in posts if isinstance(post, IRecv)), None)
            call = next((post for post in posts if isinstance(post, ISend)), None)
            if into is None or call is None or {into.block, call.block} != {*join.blocks}:
                return None
            if into.peer != call.peer or into.communicator != call.communicator:
                return None
            requests = [into.request, call.request]
            owners = tuple(into.peer if part == into.block else rank for part in join.blocks)
        # A wait for something else in between would have to be passed by the ring.
        if len(waits) != len(requests) or {*waits} != {Wait(request) for request in requests}:
            return None
        both: set[Meeting] = {meeting for start in met[first : place - 1] for meeting in start}
        removed = tuple(range(first, place))
        meets = (frozenset(both), owners)
        return TransferSite(
            True, rank, place, node, first, call, join.block, join.blocks, owners, removed, meets
        )

    def _reduction(self, rank: int, place: int, node: Compute) -> TransferSite | None:
        line = self.lines[rank]
        kernel = self.tables.phases[str(node.phase)].kernel
        if kernel == "linear.gradient" or not line.is_absent(node.accumulates, place):
            return None
        after, cut = place + 1, None
        # Forward from the product: a cut of its result, frees, and then the reduction, with nothing
        # else between.
        for after in range(place + 1, len(line.nodes)):
            following = line.nodes[after]
            if after == place + 1 and isinstance(following, Cut):
                cut = following
            elif type(following) is not Free:
                break
        call = line.nodes[after] if after < len(line.nodes) else None
        if not isinstance(call, AllReduce | ReduceScatter) or call.request is not None:
            return None
        if call.reduction != "sum" or len(call.group) < 2:
            return None
        meets = (type(call), *self._met[rank][after])
        if isinstance(call, AllReduce):
            is_result = cut is None and call.reduced == (node.accumulates,)
            removed = [after]
        else:
            is_result = (
                cut is not None
                and (cut.in_place, cut.block, cut.blocks) == (True, node.accumulates, call.blocks)
                and call.block == call.blocks[call.group.index(rank)]
            )
            uses = [line.after(name, after) for name in call.blocks if name != call.block]
            frees = [use for use in uses if use is not None and type(line.nodes[use]) is Free]
            is_result = is_result and len(frees) == len(uses)
            removed = [place + 1, after, *frees]
        if not is_result:
            return None
        parts = (call.block,) if isinstance(call, AllReduce) else call.blocks
        return TransferSite(
            False, rank, place, node, after, call, node.accumulates, parts, call.group,
            tuple(removed), meets,
        )  # fmt: skip

    def hiding_work(self, site: TransferSite, meaning: Meaning) -> HidingWork:
        """Return the work of a rank that can hide its gather whole, or the end of its reduction.

        After a reduction it ends where something waits for the result, or communicates. Before a
        gather it begins where the rank has its own part, or after another message: `needed_first`
        posts the gather before collectives whose results are needed later, such as that of I for dW
        before the reduction of dI.
        """
        line = self.lines[site.rank]
        if site.gathers:
            posts = [place for place in site.removed[:-1] if type(line.nodes[place]) is not Wait]
            places = range(site.place - 1, line.ready(posts), -1)
        else:
            end = line.after(site.call.block, site.place)
            places = range(site.place + 1, len(line.nodes) if end is None else end)
        computes = elements = operations = 0
        for place in places:
            node = line.nodes[place]
            # A collective whose result is needed after the product can be posted after the gather.
            is_call = isinstance(node, Collective) and node.request is None
            is_later = site.gathers and is_call and line.needed([place]) > site.product
            if type(node) not in LOCAL and not is_later:
                break
            if not isinstance(node, Compute):
                continue
            sizes = [meaning.elements(name) or 0 for name in (*node.reads, node.accumulates)]
            computes, elements = computes + 1, elements + sum(sizes)
            known = self.tables.phases.get(str(node.phase))
            if known is not None and multiplies(known.kernel):
                # Each dim is in two of the three blocks of a product.
                # MN * NK * MK is (M N K)^2, and a product is 2 M N K operations.
                operations += 2 * isqrt(prod(sizes))
        return HidingWork(computes, elements, operations)
