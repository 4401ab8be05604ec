"""Layouts: which block of a tensor every rank holds; and the way from one layout to another."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import product
from math import lcm

from primepar.errors import SequenceError
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Free, Instruction, IRecv, ISend, Program, Wait


@dataclass(frozen=True)
class Layout:
    """`held[rank]` lists the blocks of a tensor whose dims are cut into `grid` slices each."""

    grid: tuple[int, ...]
    held: tuple[tuple[Index, ...], ...]

    @classmethod
    def of(cls, grid: Several[int], held: Several[frozenset[Index]]) -> Layout:
        """Build a layout from sets of blocks."""
        return cls(tuple(grid), tuple(tuple(sorted(blocks)) for blocks in held))

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return len(self.held)

    def refined(self, grid: tuple[int, ...]) -> Layout:
        """The same layout in finer blocks; each entry of `grid` is a multiple of ours."""
        factors = [fine // coarse for fine, coarse in zip(grid, self.grid, strict=True)]
        held = tuple(
            tuple(sorted(fine for index in blocks for fine in _cut(index, factors)))
            for blocks in self.held
        )
        return Layout(grid, held)

    def coarsest(self) -> Layout:
        """The same layout in the largest blocks that every device holds whole or not at all."""
        layout = self
        for dim, count in enumerate(self.grid):
            layout = next(
                coarse
                for slices in range(1, count + 1)
                if count % slices == 0 and (coarse := layout._coarsened(dim, slices)) is not None
            )
        return layout

    def _coarsened(self, dim: int, slices: int) -> Layout | None:
        """The layout with `dim` cut in `slices` only; None where a device holds part of one."""
        grid = (*self.grid[:dim], slices, *self.grid[dim + 1 :])
        factor = self.grid[dim] // slices
        held = tuple(
            tuple(sorted({(*i[:dim], i[dim] // factor, *i[dim + 1 :]) for i in blocks}))
            for blocks in self.held
        )
        coarse = Layout(grid, held)
        return coarse if coarse.refined(self.grid) == self else None

    def slices(self, rank: int, dim: int) -> tuple[int, ...]:
        """Slices of one dim that `rank` holds."""
        return tuple(sorted({index[dim] for index in self.held[rank]}))

    def peers_along(self, dim: int) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks that together hold every slice of `dim` once, all else being equal.

        One group for each choice of the other dims' slices and each replica; in order of `dim`.
        """
        lines: dict[tuple[object, ...], list[list[int]]] = {}
        order = sorted(range(self.ranks), key=lambda rank: (self.slices(rank, dim), rank))
        for rank in order:
            others = tuple(self.slices(rank, d) for d in range(len(self.grid)) if d != dim)
            own = self.slices(rank, dim)
            replicas = lines.setdefault(others, [])
            for line in replicas:
                if all(self.slices(member, dim) != own for member in line):
                    line.append(rank)
                    break
            else:
                replicas.append([rank])
        return tuple(tuple(line) for replicas in lines.values() for line in replicas)


def _cut(index: Index, factors: list[int]) -> list[Index]:
    ranges = [
        range(slice_ * factor, (slice_ + 1) * factor)
        for slice_, factor in zip(index, factors, strict=True)
    ]
    return list(product(*ranges))


def common_grid(source: Layout, target: Layout) -> tuple[int, ...]:
    """The coarsest grid that is finer than both layouts' grids."""
    return tuple(lcm(a, b) for a, b in zip(source.grid, target.grid, strict=True))


def redistribution(source: Layout, target: Layout, tensor: str = "O") -> Program:
    """Program that takes a tensor from one layout to another (PrimePar, equations 8 and 9).

    Its blocks are those of `common_grid`. A block that is already there stays; any other comes
    from the holder that has sent least so far, so that replicas share the work.
    Raises `SequenceError` if the layouts have other numbers of ranks or leave a block nowhere.
    """
    if source.ranks != target.ranks:
        raise SequenceError(
            f"redistribution: expected layouts over the same devices, got {source.ranks} and "
            f"{target.ranks}: give both operators sequences for one mesh"
        )
    grid = common_grid(source, target)
    here, needed = source.refined(grid).held, target.refined(grid).held
    hops = _hops(here, needed)
    programs = [_instructions(rank, hops, here[rank], needed[rank], tensor) for rank in
                range(source.ranks)]  # fmt: skip
    return Program(
        format="primepar-program",
        version=1,
        ranks=source.ranks,
        programs=tuple(programs),
        initial=_named(here, tensor),
        final=_named(needed, tensor),
    )


def _named(held: Several[Several[Index]], tensor: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(block_name(tensor, index) for index in blocks) for blocks in held)


def _hops(
    here: tuple[tuple[Index, ...], ...], needed: tuple[tuple[Index, ...], ...]
) -> list[tuple[int, int, Index]]:
    """(source, target, block) for every block that is not where it is needed."""
    holders: dict[Index, list[int]] = {}
    for rank, blocks in enumerate(here):
        for index in blocks:
            holders.setdefault(index, []).append(rank)
    sent = [0] * len(here)
    hops = []
    for target, blocks in enumerate(needed):
        for index in sorted(set(blocks) - set(here[target])):
            if index not in holders:
                raise SequenceError(
                    f"redistribution: expected block {index} on some device, got it on none"
                )
            source = min(holders[index], key=sent.__getitem__)
            sent[source] += 1
            hops.append((source, target, index))
    return hops


def _instructions(
    rank: int,
    hops: list[tuple[int, int, Index]],
    here: tuple[Index, ...],
    needed: tuple[Index, ...],
    tensor: str,
) -> tuple[Instruction, ...]:
    posts: list[Instruction] = []
    for source, target, index in hops:
        block = block_name(tensor, index)
        if rank == source:
            posts.append(ISend(target, block, request=f">{target}{block}"))
        elif rank == target:
            posts.append(IRecv(source, block, request=f"<{source}{block}"))
    waits = [Wait(post.request) for post in posts if isinstance(post, ISend | IRecv)]
    frees = [Free(block_name(tensor, index)) for index in sorted(set(here) - set(needed))]
    return (*posts, *waits, *frees)
