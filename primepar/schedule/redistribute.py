"""The way of a tensor from one layout to another: what moves, and the program that moves it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from primepar.errors import SequenceError
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Free, IRecv, ISend, Program, Wait

Held = list[tuple[Index, ...]]
Hop = tuple[int, int, Index]
"""Source, target and cell."""


@lru_cache(maxsize=1024)
def redistribution(source: Layout, target: Layout, tensor: str = "O") -> Program:
    """Program that takes a tensor from one layout to another (PrimePar, equations 8 and 9).

    Its blocks are the cells in which the two layouts meet, `Cells.of(source, target)`, so that
    devices with one block each send one another one message at most. A cell that is already there
    stays; any other comes from the holder that has sent least so far, the largest cells first, so
    that replicas share the work. Raises `SequenceError` if the layouts have other numbers of ranks
    or leave a block nowhere.
    """
    if source.ranks != target.ranks:
        raise SequenceError(
            f"redistribution: expected layouts over the same devices, got {source.ranks} and "
            f"{target.ranks}: give both operators sequences for one mesh"
        )
    cells = Cells.of(source, target)
    here, needed = _held(cells, source), _held(cells, target)
    hops, _ = _hops(cells, here, needed)
    messages = _messages(hops, source.ranks, tensor)
    programs = tuple(
        (
            *posts,
            *(Wait(post.request) for post in posts),
            *(Free(block_name(tensor, index)) for index in sorted(set(before) - set(after))),
        )
        for posts, before, after in zip(messages, here, needed, strict=True)
    )
    return Program(
        format="primepar-program",
        version=1,
        ranks=source.ranks,
        programs=programs,
        initial=_named(here, tensor),
        final=_named(needed, tensor),
    )


@lru_cache(maxsize=4096)
def moved(source: Layout, target: Layout) -> Fraction:
    """What a redistribution sends, as a part of the tensor: all that a device lacks."""
    if source == target:
        return Fraction(0)
    cells = Cells.of(source, target)
    missing = _missing(_held(cells, source), _held(cells, target))
    return Fraction(sum(cells.count(index) for _, index in missing), cells.parts)


@lru_cache(maxsize=4096)
def sent(source: Layout, target: Layout) -> tuple[Fraction, ...]:
    """What every device sends in a redistribution, as a part of the tensor."""
    if source == target:
        return (Fraction(0),) * source.ranks
    cells = Cells.of(source, target)
    _, sent_cells = _hops(cells, _held(cells, source), _held(cells, target))
    return tuple(Fraction(count, cells.parts) for count in sent_cells)


def _held(cells: Cells, layout: Layout) -> Held:
    """The cells of every rank; ranks with the same blocks share them."""
    first = {blocks: rank for rank, blocks in enumerate(layout.held)}
    known = {blocks: cells.held(layout, rank) for blocks, rank in first.items()}
    return [known[blocks] for blocks in layout.held]


def _named(held: Held, tensor: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(block_name(tensor, index) for index in blocks) for blocks in held)


def _missing(here: Held, needed: Held) -> Iterator[tuple[int, Index]]:
    """(target, cell) for every cell that is not where it is needed."""
    for target, (before, after) in enumerate(zip(here, needed, strict=True)):
        for index in sorted(set(after) - set(before)):
            yield target, index


def _hops(cells: Cells, here: Held, needed: Held) -> tuple[list[Hop], list[int]]:
    """The hops, and how many cells of the grid every rank sends."""
    holders: dict[Index, list[int]] = {}
    for rank, blocks in enumerate(here):
        for index in blocks:
            holders.setdefault(index, []).append(rank)
    sizes = {index: cells.count(index) for index in holders}
    missing = sorted(
        _missing(here, needed), key=lambda pair: sizes.get(pair[1], cells.parts), reverse=True
    )
    sent = [0] * len(here)
    hops = []
    for target, index in missing:
        if index not in holders:
            raise SequenceError(
                f"redistribution: expected block {index} on some device, got it on none"
            )
        source = min(holders[index], key=sent.__getitem__)
        sent[source] += sizes[index]
        hops.append((source, target, index))
    return hops, sent


def _messages(hops: list[Hop], ranks: int, tensor: str) -> list[list[ISend | IRecv]]:
    """What every rank posts, in the order of the hops."""
    posts: list[list[ISend | IRecv]] = [[] for _ in range(ranks)]
    for source, target, index in hops:
        block = block_name(tensor, index)
        posts[source].append(ISend(target, block, request=f">{target}{block}"))
        posts[target].append(IRecv(source, block, request=f"<{source}{block}"))
    return posts
