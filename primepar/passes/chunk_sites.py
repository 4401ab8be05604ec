"""Finds products next to the transfer of their operand or of their result.

A gather site is an all-gather, the join of what it gathers, and the product that reads the whole.
Between two devices the all-gather is a message each way. A reduction site is a product, and the
all-reduce or the reduce-scatter of its result; before a reduce-scatter the result is cut. Examples,
each on every rank of the group:

    all_gather      x[1] -> x[0] x[1]         linear.forward  y += x * w
    join            x[0] x[1] -> x.joined     all_reduce      y over 0,1
    linear.forward  y += x.joined * w

Next to a site, other computes hide the transfer: before a gather those that do not need it, after a
reduction those that do not use its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt, prod
from typing import NamedTuple

from primepar.passes.block_uses import LOCAL, Rank, RankList
from primepar.passes.calls import Meeting, meetings
from primepar.passes.program_tables import Tables, divides_nothing
from primepar.schedule.effects import initial_blocks
from primepar.schedule.meaning import Meaning
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
    ReduceScatter,
    Wait,
)
from primepar.schedule.signature import multiplies

Meets = tuple[object, ...]
"""The same on all members of a transfer, if their calls match."""


@dataclass(frozen=True)
class GatherSite:
    """On one rank: the positions of a gather, and of the product that reads what it gathers."""

    rank: int
    first: int
    """Position of the first post; from there to the product nothing else is in the list."""
    product: int
    node: Compute
    whole: str
    """The joined block."""
    parts: tuple[str, ...]
    """Its parts, by their place in it."""
    ranks: tuple[int, ...]
    """The rank that has each part."""
    communicator: str
    meets: Meets


@dataclass(frozen=True)
class ReductionSite:
    """On one rank: the positions of a product, and of the reduction of its result."""

    rank: int
    product: int
    node: Compute
    place: int
    """Position of the call."""
    call: AllReduce | ReduceScatter
    parts: tuple[str, ...]
    """The blocks that a reduce-scatter takes; the result itself for an all-reduce."""
    kept: str
    """The block with the sum."""
    removed: tuple[int, ...]
    """Positions of the cut of the result, and of the frees of other members' parts."""
    ranks: tuple[int, ...]
    meets: Meets


Site = GatherSite | ReductionSite


class SiteFinder:
    """Finds the sites of a program, phase by phase."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        program = tables.program
        by_rank = enumerate(zip(program.programs, initial_blocks(program), strict=True))
        self.lines = [RankList(nodes, Rank(rank), initial) for rank, (nodes, initial) in by_rank]
        self._met = [list(meetings(line.nodes, line.rank.rank)) for line in self.lines]

    def sites(self) -> Iterator[tuple[str, list[Site]]]:
        """Yield the phases with products at sites of one kind alone, on every rank that has any."""
        products: dict[str, list[Site | None]] = {
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
            if known and len(known) == len(sites) and _meet(known):
                yield phase, known

    def _gather(self, rank: int, place: int, node: Compute) -> GatherSite | None:
        nodes, met = self.lines[rank].nodes, self._met[rank]
        join = nodes[place - 1] if place else None
        if not isinstance(join, Join) or not join.in_place or join.block not in node.reads:
            return None
        first = place - 1
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
        if len(waits) != len(requests) or {*waits} != {Wait(request) for request in requests}:
            return None
        both: set[Meeting] = {meeting for start in met[first : place - 1] for meeting in start}
        return GatherSite(
            rank, first, place, node, join.block, join.blocks, owners, call.communicator,
            (frozenset(both), owners),
        )  # fmt: skip

    def _reduction(self, rank: int, place: int, node: Compute) -> ReductionSite | None:
        line = self.lines[rank]
        kernel = self.tables.phases[str(node.phase)].kernel
        if kernel == "linear.gradient" or not line.is_absent(node.accumulates, place):
            return None
        after, cut = place + 1, None
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
            removed = list[int]()
        else:
            is_result = (
                cut is not None
                and (cut.in_place, cut.block, cut.blocks) == (True, node.accumulates, call.blocks)
                and call.block == call.blocks[call.group.index(rank)]
            )
            uses = [line.after(name, after) for name in call.blocks if name != call.block]
            frees = [use for use in uses if use is not None and type(line.nodes[use]) is Free]
            is_result = is_result and len(frees) == len(uses)
            removed = [place + 1, *frees]
        if not is_result:
            return None
        parts = (call.block,) if isinstance(call, AllReduce) else call.blocks
        return ReductionSite(
            rank, place, node, after, call, parts, call.block, tuple(removed), call.group, meets
        )


def _meet(sites: list[Site]) -> bool:
    """Return whether the calls of the members of every group match one another.

    The blocks that are transferred are those of one tensor.
    """
    kinds = {(type(site), site.parts[0].rpartition("[")[0]) for site in sites}
    meets = {(site.rank, site.meets) for site in sites}
    return len(kinds) == 1 and all(
        (member, site.meets) in meets for site in sites for member in site.ranks
    )


class HidingWork(NamedTuple):
    """Computes of a device that run while a transfer next to them travels."""

    computes: int = 0
    elements: int = 0
    """Of all blocks that these computes name."""
    operations: int = 0
    """Of the products among them."""


def work_after(site: ReductionSite, line: RankList, tables: Tables, meaning: Meaning) -> HidingWork:
    """Return the work of a rank that can hide the end of its reduction.

    It ends where something waits for the reduction, or communicates.
    """
    computes = list[Compute]()
    for node in line.nodes[site.place + 1 : line.after(site.kept, site.place)]:
        if type(node) not in LOCAL:
            break
        computes += [node] if isinstance(node, Compute) else []
    return _work(computes, tables, meaning)


def work_before(site: GatherSite, line: RankList, tables: Tables, meaning: Meaning) -> HidingWork:
    """Return the work of a rank that can hide its gather, if that stays whole.

    It begins where the rank has its own part, or after another message. The pass `needed_first`
    posts the gather before collectives whose results are needed later: the gather of I for dW
    before the reduction of dI.
    """
    span = range(site.first, site.product - 1)
    posts = [place for place in span if type(line.nodes[place]) is not Wait]
    computes = list[Compute]()
    for place in range(site.first - 1, line.ready(posts), -1):
        node = line.nodes[place]
        if type(node) not in LOCAL and not _may_wait(node, place, site, line):
            break
        computes += [node] if isinstance(node, Compute) else []
    return _work(computes, tables, meaning)


def _may_wait(node: Instruction, place: int, site: GatherSite, line: RankList) -> bool:
    """Return whether an instruction is a collective whose results are used after the product."""
    is_blocking = isinstance(node, Collective) and node.request is None
    return is_blocking and line.needed([place]) > site.product


def _work(nodes: Iterable[Compute], tables: Tables, meaning: Meaning) -> HidingWork:
    computes = elements = operations = 0
    for node in nodes:
        sizes = [meaning.elements(name) or 0 for name in (*node.reads, node.accumulates)]
        computes, elements = computes + 1, elements + sum(sizes)
        known = tables.phases.get(str(node.phase))
        if known is not None and multiplies(known.kernel):
            # Each dim is in two of the three blocks of a product.
            operations += 2 * isqrt(prod(sizes))
    return HidingWork(computes, elements, operations)
