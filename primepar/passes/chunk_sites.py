"""Finds products next to the transfer of their operand or of their result.

A gather site is an all-gather, the join of what it gathers, and the product that reads the whole.
Between two devices the all-gather is a message each way. A reduction site is a product, and the
all-reduce or the reduce-scatter of its result; before a reduce-scatter the result is cut. Examples,
each on every rank of the group:

    all_gather      x[1] -> x[0] x[1]         linear.forward  y += x * w
    join            x[0] x[1] -> x.joined     all_reduce      y over 0,1
    linear.forward  y += x.joined * w
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.program_tables import Tables
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Collective,
    Compute,
    Cut,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Recv,
    ReduceScatter,
    Send,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks
from primepar.schedule.signature import multiplies

Channel = tuple[object, ...]


@dataclass(frozen=True)
class GatherSite:
    """On one rank: the positions of a gather, and of the product that reads what it gathers."""

    first: int
    """Position of the first post; from there to the product nothing else is in the list."""
    product: int
    whole: str
    """The joined block."""
    parts: tuple[str, ...]
    """Its parts, by their place in it."""
    owners: tuple[int, ...]
    """The rank that has each part."""
    communicator: str
    meets: Channel
    """The same on all members, if their calls match."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that gather together."""
        return self.owners


@dataclass(frozen=True)
class ReductionSite:
    """On one rank: the positions of a product, and of the reduction of its result."""

    product: int
    call: int
    result: str
    """The block that the product writes."""
    parts: tuple[str, ...]
    """The blocks that a reduce-scatter takes; the result itself for an all-reduce."""
    kept: str
    """The block with the sum."""
    cut: int | None
    """Position of the cut of the result."""
    frees: tuple[int, ...]
    """Positions where parts of other members are freed after the call."""
    ranks: tuple[int, ...]
    meets: Channel


Site = GatherSite | ReductionSite
Sites = list[list[Site]]
"""Those of every rank."""


class SiteFinder:
    """Finds the sites of a program, phase by phase."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        program = tables.program
        self.lines = [
            RankList(nodes, Rank(rank), initial)
            for rank, (nodes, initial) in enumerate(
                zip(program.programs, initial_blocks(program), strict=True)
            )
        ]
        self._numbers = [_numbered(nodes) for nodes in program.programs]

    def sites(self) -> Iterator[tuple[str, Sites]]:
        """Yield the phases with products at sites of one kind alone, on every rank that has any."""
        for phase, products in self._products().items():
            sites = [
                [self._site(rank, place) for place in places]
                for rank, places in enumerate(products)
            ]
            known = [[site for site in of_rank if site is not None] for of_rank in sites]
            if any(sites) and known == sites and self._meet(known):
                yield phase, known

    def _products(self) -> dict[str, list[list[int]]]:
        """Phase -> the positions of its products on every rank."""
        products: dict[str, list[list[int]]] = {
            phase: [[] for _ in self.lines]
            for phase, signature in self.tables.phases.items()
            if multiplies(signature.kernel)
            and all(
                number == 1
                for template in signature.templates
                for dim, number in template.entries
                if dim
            )
        }
        for rank, line in enumerate(self.lines):
            for place, node in enumerate(line.nodes):
                if type(node) is Compute and node.phase in products:
                    products[node.phase][rank].append(place)
        return products

    def _meet(self, sites: Sites) -> bool:
        """Return whether the calls of the members of every group match one another.

        The blocks that are transferred are those of one tensor.
        """
        every = [site for of_rank in sites for site in of_rank]
        kinds = {(type(site), site.parts[0].rpartition("[")[0]) for site in every}
        meets = [{site.meets for site in of_rank} for of_rank in sites]
        return len(kinds) == 1 and all(
            site.meets in meets[member] for site in every for member in site.ranks
        )

    def _site(self, rank: int, place: int) -> Site | None:
        return self._gather(rank, place) or self._reduction(rank, place)

    # Gathers

    def _gather(self, rank: int, place: int) -> GatherSite | None:
        line = self.lines[rank]
        join, node = line.nodes[place - 1] if place else None, line.nodes[place]
        assert isinstance(node, Compute)
        if not isinstance(join, Join) or not join.in_place or join.block not in node.reads:
            return None
        return self._collective(rank, place, join) or self._exchange(rank, place, join)

    def _collective(self, rank: int, place: int, join: Join) -> GatherSite | None:
        """Return the site of an all-gather: posted with its wait, or blocking."""
        nodes, number = self.lines[rank].nodes, self._numbers[rank]
        first = place - 3 if isinstance(nodes[place - 2], Wait) else place - 2
        call = nodes[first] if first >= 0 else None
        if not isinstance(call, AllGather) or set(call.blocks) != set(join.blocks):
            return None
        if call.request is not None and nodes[first + 1] != Wait(call.request):
            return None
        owners = tuple(call.group[call.blocks.index(part)] for part in join.blocks)
        if call.block != join.blocks[owners.index(rank)]:
            return None
        meets = (call.communicator, call.group, number[first], owners)
        return GatherSite(
            first, place, join.block, join.blocks, owners, call.communicator, meets
        )  # fmt: skip

    def _exchange(self, rank: int, place: int, join: Join) -> GatherSite | None:
        """Return the site of two parts that two ranks exchange."""
        nodes, number = self.lines[rank].nodes, self._numbers[rank]
        first = place - 5
        posts, waits = nodes[max(first, 0) : first + 2], nodes[first + 2 : place - 1]
        into = next((node for node in posts if isinstance(node, IRecv)), None)
        out = next((node for node in posts if isinstance(node, ISend)), None)
        if first < 0 or into is None or out is None or into.peer != out.peer:
            return None
        if {*waits} != {Wait(into.request), Wait(out.request)}:
            return None
        if {into.block, out.block} != {*join.blocks} or into.communicator != out.communicator:
            return None
        owners = tuple(into.peer if part == into.block else rank for part in join.blocks)
        numbers = {
            rank: number[first + posts.index(out)],
            into.peer: number[first + posts.index(into)],
        }
        meets = (into.communicator, owners, tuple(sorted(numbers.items())))
        return GatherSite(
            first, place, join.block, join.blocks, owners, into.communicator, meets
        )  # fmt: skip

    # Reductions

    def _reduction(self, rank: int, place: int) -> ReductionSite | None:
        line = self.lines[rank]
        node = line.nodes[place]
        assert isinstance(node, Compute)
        phase = self.tables.phases[str(node.phase)]
        if phase.kernel == "linear.gradient" or not line.is_absent(node.accumulates, place):
            return None
        after, cut = place + 1, None
        if isinstance(line.nodes[after], Cut):
            cut, after = after, after + 1
        while after < len(line.nodes) and type(line.nodes[after]) is Free:
            after += 1
        call = line.nodes[after] if after < len(line.nodes) else None
        return self._reduced(rank, node, place, cut, after, call)

    def _reduced(
        self,
        rank: int,
        node: Compute,
        place: int,
        cut: int | None,
        at_call: int,
        call: Instruction | None,
    ) -> ReductionSite | None:
        """Return the site if a call reduces the result of a product."""
        if not isinstance(call, AllReduce | ReduceScatter) or call.request is not None:
            return None
        line = self.lines[rank]
        if call.reduction != "sum" or len(call.group) < 2:
            return None
        meets = (type(call), call.communicator, call.group, self._numbers[rank][at_call])
        if isinstance(call, AllReduce):
            if cut is not None or call.reduced != (node.accumulates,):
                return None
            return ReductionSite(
                place, at_call, call.block, (call.block,), call.block, None, (), call.group, meets
            )
        parts: Any = line.nodes[cut] if cut is not None else None
        frees = self._frees(line, call, at_call)
        if parts is None or not parts.in_place or parts.block != node.accumulates or frees is None:
            return None
        if parts.blocks != call.blocks or call.block != call.blocks[call.group.index(rank)]:
            return None
        return ReductionSite(
            place, at_call, parts.block, call.blocks, call.block, cut, frees, call.group, meets
        )

    @staticmethod
    def _frees(line: RankList, call: ReduceScatter, at_call: int) -> tuple[int, ...] | None:
        """Return where the parts of other members are freed; None if one is used instead."""
        others = [block for block in call.blocks if block != call.block]
        uses = [line.after(block, at_call) for block in others]
        frees = tuple(use for use in uses if use is not None and type(line.nodes[use]) is Free)
        return frees if len(frees) == len(others) else None


def _numbered(nodes: tuple[Instruction, ...]) -> dict[int, int]:
    """Position of a call or message -> how many of its group or channel come before it."""
    counts: dict[Channel, int] = {}
    numbers: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for posted in node.body if isinstance(node, Group) else (node,):
            channel = _channel(posted)
            if channel is not None:
                numbers[place] = counts.get(channel, 0)
                counts[channel] = numbers[place] + 1
    return numbers


def _channel(node: Instruction) -> Channel | None:
    """Return what a message or a call matches in, seen from its rank; None for another one."""
    if isinstance(node, Send | ISend | Recv | IRecv):
        return node.communicator, isinstance(node, Send | ISend), node.peer
    if isinstance(node, Collective):
        return node.communicator, frozenset(node.group)
    return None
