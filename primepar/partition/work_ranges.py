"""How Stream-K divides the iterations of a product's tiles among the workers of one GPU.

A tile needs `iterations` of them, and tile t has iterations t*n to (t+1)*n - 1 of the whole line.
Worker x takes the x-th piece of `share` iterations of that line, wherever a tile begins or ends.

    tiles              |    0    |    1    |    2    |      3 tiles of 4 iterations
    iterations          0 1 2 3   4 5 6 7   8 9 10 11
    workers            |  0  |  1  |  2  |  3  |          4 workers of 3 iterations

Worker 1 completes tile 0, which worker 0 owns, and begins tile 1, which is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from primepar.schedule.primitive import Value

Variant = Literal["basic", "data-parallel", "one-tile", "two-tile"]
VARIANTS: tuple[Variant, ...] = ("basic", "data-parallel", "one-tile", "two-tile")


class WorkRule:
    """The formulas of a division of work, for integers, arrays and Z3 terms.

    The program is built from them, and the proofs for every size evaluate them on symbols.
    """

    def begin(self, worker: Value, share: Value) -> Value:
        """Return the first iteration of a worker."""
        return worker * share

    def end(self, worker: Value, share: Value) -> Value:
        """Return the iteration after a worker's last one, if the line does not end before."""
        return (worker + 1) * share

    def decisive(self, tile: Value, iterations: Value) -> Value:
        """Return the iteration of a tile whose worker owns the tile: its first."""
        return tile * iterations

    def whole_tile(self, worker: Value, wave: Value, workers: Value) -> Value:
        """Return the tile of a worker in a wave of whole tiles."""
        return wave * workers + worker

    def waves(self, variant: Variant, whole: Value, rest: Value) -> Value:
        """Return how many waves of whole tiles, one for each worker, are not divided.

        `whole` waves and `rest` tiles are the quotient and the remainder of tiles by workers. The
        last wave may be partial under `data-parallel` only.
        """
        if variant == "basic":
            return 0 * whole
        if variant == "data-parallel":
            return whole + (rest > 0) * 1
        if variant == "one-tile":
            return whole
        return whole - ((rest > 0) & (whole > 0)) * 1

    def takes(self, worker: Value, iteration: Value, share: Value) -> Value:
        """Whether a worker takes an iteration."""
        return (self.begin(worker, share) <= iteration) & (iteration < self.end(worker, share))

    def owns(self, worker: Value, tile: Value, share: Value, iterations: Value) -> Value:
        """Whether a worker owns a tile: it adds the partial sums of all others to its own."""
        return self.takes(worker, self.decisive(tile, iterations), share)


RULE = WorkRule()


class TilePart(NamedTuple):
    """Consecutive iterations of one tile that one worker takes."""

    tile: int
    start: int
    stop: int
    owner: int
    senders: tuple[int, ...] = ()
    """Workers whose partial sums the owner adds, in order; empty for all others."""


@dataclass(frozen=True)
class WorkSplit:
    """The division of `tiles` of `iterations` each among `workers`."""

    workers: int
    tiles: int
    iterations: int
    variant: Variant = "basic"
    rule: WorkRule = RULE

    @property
    def waves(self) -> int:
        """Waves of whole tiles."""
        return int(self.rule.waves(self.variant, *divmod(self.tiles, self.workers)))

    @property
    def whole_tiles(self) -> int:
        """Tiles that one worker computes alone, without dividing the line."""
        return min(self.waves * self.workers, self.tiles)

    @property
    def shared_tiles(self) -> int:
        """Tiles on the line that is divided."""
        return self.tiles - self.whole_tiles

    @property
    def share(self) -> int:
        """Iterations of the line on a worker: the total by the workers, rounded up."""
        return -(-self.shared_tiles * self.iterations // self.workers)

    @property
    def longest(self) -> int:
        """Iterations of the busiest worker."""
        return self.waves * self.iterations + self.share

    @property
    def shared_first(self) -> bool:
        """Whether the line is computed before the whole tiles; it then has the first tiles."""
        return self.variant == "two-tile"

    @cached_property
    def parts(self) -> tuple[tuple[TilePart, ...], ...]:
        """The parts of every worker, in the order in which it computes them."""
        lists = []
        for worker in range(self.workers):
            regions = [self._whole(worker), self._shared[worker]]
            # Two-tile divides first: a worker that waits for a partial sum then has whole tiles
            # left to compute.
            ordered = reversed(regions) if self.shared_first else regions
            lists.append(tuple(part for region in ordered for part in region))
        return tuple(lists)

    def _whole(self, worker: int) -> list[TilePart]:
        first = self.shared_tiles if self.shared_first else 0
        tiles = (self.rule.whole_tile(worker, wave, self.workers) for wave in range(self.waves))
        return [
            TilePart(first + tile, 0, self.iterations, worker)
            for tile in tiles
            if tile < self.whole_tiles
        ]

    @cached_property
    def _shared(self) -> list[list[TilePart]]:
        """The parts of the line by worker, with the owners and senders of their tiles."""
        first = 0 if self.shared_first else self.whole_tiles
        pieces = [list(self._pieces(worker)) for worker in range(self.workers)]
        workers: dict[int, list[int]] = {}
        for worker, of_worker in enumerate(pieces):
            for tile, _, _ in of_worker:
                workers.setdefault(tile, []).append(worker)
        owners = {tile: self._owner(tile, touching) for tile, touching in workers.items()}
        parts: list[list[TilePart]] = []
        for worker, of_worker in enumerate(pieces):
            parts.append([])
            for tile, start, stop in of_worker:
                others = tuple(other for other in workers[tile] if other != owners[tile])
                senders = others if worker == owners[tile] else ()
                parts[-1].append(TilePart(first + tile, start, stop, owners[tile], senders))
        return parts

    def _owner(self, tile: int, touching: list[int]) -> int:
        share, iterations = self.share, self.iterations
        return next(
            worker for worker in touching if self.rule.owns(worker, tile, share, iterations)
        )

    def _pieces(self, worker: int) -> Iterator[tuple[int, int, int]]:
        """Yield the tiles of a worker's piece of the line, each with start and stop."""
        total = self.shared_tiles * self.iterations
        begin = self.rule.begin(worker, self.share)
        end = min(self.rule.end(worker, self.share), total)
        # Worker 1 of the header takes iterations 3, 4 and 5: (0, 3, 4), the end of tile 0, and (1,
        # 0, 2), the start of tile 1.
        while begin < end:
            tile, start = divmod(begin, self.iterations)
            stop = min(self.iterations, start + end - begin)
            yield tile, start, stop
            begin += stop - start
