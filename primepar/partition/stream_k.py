"""Stream-K: one product on the workers of one GPU, divided by work and not by tiles.

Source: Osama, Merrill, Cecka, Garland and Owens, PPoPP 2023, arXiv 2301.03598.

O is cut into tiles of `tile_m` x `tile_k` elements, numbered row by row. A tile needs n iterations:
each adds a product of `tile_n` slices of N. (The paper's k is our N, and its n our K.) Whole tiles
leave workers idle: 9 tiles on 4 workers take 3 waves, and three workers wait in the last one.
Stream-K gives every worker the same number of iterations, wherever a tile begins or ends. The
worker with the first iteration of a tile owns it. Every other worker of the tile writes its partial
sum to memory and raises a flag; the owner waits for the flags and adds the sums.

A flag and its partial sum are a message here, of a scratch tile `O[m,k]'`. The workers share one
memory, so that all of I and W is on every rank. A worker posts its partial tile as the first thing
that others wait for, and waits for others last: only for workers with larger numbers.

Worker x of g takes the iterations $x p$ to $min((x + 1) p, T n) - 1$ of all $T n$, with
$p = ceil(T n / g)$.

    basic          all T tiles are divided
    data-parallel  none is: worker x computes tiles $x, x + g, x + 2 g, ...$
    one-tile       $floor(T / g)$ waves of whole tiles, then the $T mod g$ tiles that remain
    two-tile       the $T mod g$ tiles and one full wave are divided, then the other waves;
                   a tile has at most two workers if $T >= g$

The last worker may have less than the others: a split whose shares differ by one at most is better
balanced, but its longest share is p too.

Sent per worker:  at most one partial tile.
Held per worker:  I and W, the tiles that it owns, and at most two scratch tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Annotated, ClassVar

from msgspec import Meta

from primepar.errors import MethodError
from primepar.partition.work_ranges import RULE, TilePart, Variant, WorkRule, WorkSplit
from primepar.schedule.operators import block_name, scratch_name
from primepar.schedule.program import (
    MOST_SUB_OPERATORS,
    Compute,
    Free,
    Instruction,
    ISend,
    Program,
    Recv,
    Wait,
)
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.signature import Bound, Tensor

Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
PERCENT = 100


class StreamK(ProgramMethod, frozen=True):
    """Every worker of a GPU takes the same number of iterations of the tiles of a product."""

    name = "stream-k"
    untimed = frozenset({"transfer"})
    rule: ClassVar[WorkRule] = RULE

    workers: Annotated[int, Meta(ge=1, le=4096)] = 4
    M: Size = 6
    N: Size = 8
    K: Size = 6
    tile_m: Size = 2
    tile_n: Size = 2
    tile_k: Size = 2
    variant: Variant = "basic"

    def __post_init__(self) -> None:
        super().__post_init__()
        for dim in ("M", "N", "K"):
            size, tile = getattr(self, dim), getattr(self, f"tile_{dim.lower()}")
            if tile > size:
                raise MethodError(
                    f"stream-k: expected tiles within the matrix, tile_{dim.lower()} <= "
                    f"{dim}={size}, got {tile}: write tile_{dim.lower()}={size}"
                )

    @property
    def tilings(self) -> dict[str, tuple[int, int]]:
        """Size of each dim, and of its slices."""
        return {"M": (self.M, self.tile_m), "N": (self.N, self.tile_n), "K": (self.K, self.tile_k)}

    @cached_property
    def slices(self) -> dict[str, int]:
        """Number of slices of each dim, the last of which may be smaller."""
        return {dim: -(-size // tile) for dim, (size, tile) in self.tilings.items()}

    @cached_property
    def cuts(self) -> dict[str, tuple[int, ...]]:
        """First elements of the slices of each dim, and its size."""
        return {dim: (*range(0, size, tile), size) for dim, (size, tile) in self.tilings.items()}

    @cached_property
    def split(self) -> WorkSplit:
        """Which worker computes what."""
        tiles = self.slices["M"] * self.slices["K"]
        return WorkSplit(self.workers, tiles, self.slices["N"], self.variant, self.rule)

    def program(self) -> Program:
        slices = self.slices
        iterations = self.split.tiles * self.split.iterations
        if iterations > MOST_SUB_OPERATORS:
            raise MethodError(
                f"stream-k: expected at most {MOST_SUB_OPERATORS} iterations in a program, "
                f"got {iterations}: give it larger tiles"
            )
        dims = {"I": ("M", "N"), "W": ("N", "K"), "O": ("M", "K")}
        inputs = [
            block_name(tensor, (row, column))
            for tensor in ("I", "W")
            for row in range(slices[dims[tensor][0]])
            for column in range(slices[dims[tensor][1]])
        ]
        return Program(
            format="primepar-program",
            version=1,
            ranks=self.workers,
            programs=tuple(tuple(self._worker(worker)) for worker in range(self.workers)),
            grid={"forward": slices},
            tensors={
                tensor: Tensor(tuple(self.cuts[dim] for dim in dims[tensor])) for tensor in dims
            },
            initial=(tuple(inputs),) * self.workers,
            final=tuple(tuple(self._owned(worker)) for worker in range(self.workers)),
            memory=Bound(device=self._memory),
            traffic=tuple(self._sent(worker) for worker in range(self.workers)),
        )

    def facts(self) -> dict[str, str]:
        split = self.split
        useful = Fraction(split.tiles * split.iterations, split.workers * split.longest)
        waves = -(-split.tiles // split.workers)
        whole = Fraction(split.tiles, split.workers * waves)
        parts = [part for parts in split.parts for part in parts]
        return {
            "iterations": f"{split.tiles} tiles of {split.iterations}, "
            f"at most {split.longest} on a worker",
            "utilisation": f"{_share(useful)}, by whole tiles {_share(whole)}",
            "partial tiles": str(sum(len(part.senders) for part in parts)),
            "workers of a tile": f"at most {max(1 + len(part.senders) for part in parts)}",
        }

    def _worker(self, worker: int) -> Iterator[Instruction]:
        """Yield the instructions of a worker: its parts in order, then what it posted is done."""
        posted: list[tuple[str, str]] = []
        for part in self.split.parts[worker]:
            block = self._block(part.tile)
            if part.owner != worker:
                request = f"partial {block}"
                post = ISend(part.owner, scratch_name(block), tag=part.tile, request=request)
                posted.append((request, scratch_name(block)))
                yield from self._products(part, scratch_name(block))
                # Before any receive of this worker, as the part that it does not own is its first:
                # so no two workers wait for each other.
                yield post
                continue
            yield from self._products(part, block)
            # In the order of the workers, so that the sum has one order on every run.
            for sender in part.senders:
                yield Recv(sender, scratch_name(block), tag=part.tile)
                yield Compute((scratch_name(block),), block)
                yield Free(scratch_name(block))
        for request, scratch in posted:
            yield Wait(request)
            yield Free(scratch)

    def _products(self, part: TilePart, into: str) -> Iterator[Instruction]:
        m, k = divmod(part.tile, self.slices["K"])
        for n in range(part.start, part.stop):
            reads = (block_name("I", (m, n)), block_name("W", (n, k)))
            yield Compute(reads, into, "forward", {"M": m, "N": n, "K": k})

    def _block(self, tile: int) -> str:
        return block_name("O", divmod(tile, self.slices["K"]))

    def _owned(self, worker: int) -> Iterator[str]:
        parts = self.split.parts[worker]
        return (self._block(part.tile) for part in parts if part.owner == worker)

    def elements(self, tile: int) -> int:
        """Elements of a tile of O, which is smaller at the end of a row or column."""
        m, k = divmod(tile, self.slices["K"])
        rows, columns = self.cuts["M"], self.cuts["K"]
        return (rows[m + 1] - rows[m]) * (columns[k + 1] - columns[k])

    def _sent(self, worker: int) -> int:
        parts = self.split.parts[worker]
        return sum(self.elements(part.tile) for part in parts if part.owner != worker)

    @property
    def _memory(self) -> int:
        """A bound of the elements on a worker: inputs, its tiles, and one that it receives."""
        outputs = max(
            sum(self.elements(part.tile) for part in parts)
            + max((self.elements(part.tile) for part in parts if part.senders), default=0)
            for parts in self.split.parts
        )
        return (self.M + self.K) * self.N + outputs


def _share(part: Fraction) -> str:
    return f"{part} = {float(PERCENT * part):.1f} %"
