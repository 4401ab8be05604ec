"""The smallest sizes at which a division of work is wrong, searched with plain integers.

A lemma of `stream_k` that Z3 does not prove may fail only where nothing goes wrong. So what is
reported as refuted is a property that fails at these sizes, counted without Z3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from primepar.partition.work_ranges import VARIANTS, WorkRule, WorkSplit

LIMIT = "workers of a tile"
"""The property that few workers share a tile."""
LARGEST_SUM = 12
"""Of workers, tiles and iterations."""


@dataclass(frozen=True)
class Numbers:
    """A line of tiles with numbers as its sizes."""

    rule: WorkRule
    workers: int
    tiles: int
    iterations: int

    @property
    def share(self) -> int:
        """Iterations of a worker."""
        # Rounded up: 7 iterations on 3 workers are 3, 3 and 1.
        return -(-self.tiles * self.iterations // self.workers)

    def takers(self, iteration: int) -> list[int]:
        """The workers of an iteration."""
        return [worker for worker in range(self.workers)
                if self.rule.takes(worker, iteration, self.share)]  # fmt: skip

    def workers_of(self, tile: int) -> list[int]:
        """The workers of a tile, in order."""
        iterations = range(tile * self.iterations, (tile + 1) * self.iterations)
        return sorted({worker for iteration in iterations for worker in self.takers(iteration)})

    def owners(self, tile: int) -> list[int]:
        """The workers that own a tile: one, if nothing is wrong."""
        return [worker for worker in range(self.workers)
                if self.rule.owns(worker, tile, self.share, self.iterations)]  # fmt: skip

    def tiles_of(self, worker: int) -> list[int]:
        """The tiles of a worker, in order."""
        return [tile for tile in range(self.tiles) if worker in self.workers_of(tile)]

    def posted(self, worker: int) -> list[int]:
        """Tiles of which a worker posts a partial sum."""
        return [tile for tile in self.tiles_of(worker) if worker not in self.owners(tile)]

    def awaited(self, worker: int) -> list[int]:
        """Tiles that a worker owns with others."""
        return [tile for tile in range(self.tiles)
                if worker in self.owners(tile) and self.workers_of(tile) != [worker]]  # fmt: skip


def smallest_fault(rule: WorkRule, property_: str) -> str | None:
    """A sentence with the smallest sizes at which a property fails, None if there are none."""
    some = range(1, LARGEST_SUM - 1)
    sizes = [numbers for numbers in product(some, repeat=3) if sum(numbers) <= LARGEST_SUM]
    # By their sum: the first one that fails is small enough to draw.
    for workers, tiles, iterations in sorted(sizes, key=lambda chosen: (sum(chosen), chosen)):
        numbers = Numbers(rule, workers, tiles, iterations)
        fault = next(FAULTS[property_](numbers), None)
        if fault is not None:
            return f"workers={workers}, tiles={tiles}, iterations={iterations}: expected {fault}"
    return None


def _uncovered(numbers: Numbers) -> Iterator[str]:
    for iteration in range(numbers.tiles * numbers.iterations):
        takers = numbers.takers(iteration)
        if len(takers) != 1:
            yield f"iteration {iteration} on one worker, got {_workers(takers)}"
    yield from _uncovered_whole(numbers)


def _uncovered_whole(numbers: Numbers) -> Iterator[str]:
    """What is wrong with the tiles that are not divided: taken twice, or beyond the last."""
    workers, tiles, rule = numbers.workers, numbers.tiles, numbers.rule
    for variant in VARIANTS:
        waves = WorkSplit(workers, tiles, 1, variant, rule).waves
        taken = [rule.whole_tile(worker, wave, workers)
                 for wave in range(waves) for worker in range(workers)]  # fmt: skip
        if len(set(taken)) < len(taken):
            yield f"whole tiles once under {variant}, got {sorted(taken)}"
        if variant != "data-parallel" and any(tile >= tiles for tile in taken):
            yield f"whole tiles below {tiles} under {variant}, got {max(taken)}"
        if variant == "data-parallel" and not set(range(tiles)) <= set(taken):
            yield f"all {tiles} tiles under {variant}, got {sorted(taken)}"


def _crowded(numbers: Numbers) -> Iterator[str]:
    share, iterations = numbers.share, numbers.iterations
    for tile in range(numbers.tiles):
        workers = numbers.workers_of(tile)
        # Workers between the first and the last take whole shares of the tile, and these two take
        # at least one iteration each.
        if workers and (workers[-1] - workers[0] - 1) * share > iterations - 2 >= 0:
            yield f"few workers on tile {tile}, got {_workers(workers)}"


def _incomplete(numbers: Numbers) -> Iterator[str]:
    for tile in range(numbers.tiles):
        owners, workers = numbers.owners(tile), numbers.workers_of(tile)
        if len(owners) != 1 or owners[0] not in workers:
            yield f"one owner of tile {tile} out of {_workers(workers)}, got {_workers(owners)}"


def _waiting(numbers: Numbers) -> Iterator[str]:
    for worker in range(numbers.workers):
        for tile in numbers.awaited(worker):
            earlier = [other for other in numbers.workers_of(tile) if other < worker]
            if earlier:
                yield (
                    f"worker {worker} to wait for later workers only, got {_workers(earlier)} "
                    f"for tile {tile}"
                )
            # A post behind a wait: the worker that waits for it may be the one that is waited for.
            if any(posted >= tile for posted in numbers.posted(worker)):
                yield f"worker {worker} to post before it waits for tile {tile}, got it after"


def _racing(numbers: Numbers) -> Iterator[str]:
    for worker in range(numbers.workers):
        posted = numbers.posted(worker)
        if len(posted) > 1:
            yield f"one partial tile from worker {worker}, got {posted}"


FAULTS: dict[str, Callable[[Numbers], Iterator[str]]] = {
    "coverage": _uncovered,
    "completion": _incomplete,
    "deadlock-freedom": _waiting,
    "races": _racing,
    LIMIT: _crowded,
}
"""Property -> the sentences of what is wrong at some sizes."""


def _workers(numbers: list[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}" if numbers else "none"
