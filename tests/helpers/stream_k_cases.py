"""Generated sizes of Stream-K, and wrong divisions of its work."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, Variant, WorkRule
from primepar.schedule.primitive import Value

WITH_FIX_UP = StreamK(workers=5, M=3, N=4, K=2, tile_m=1, tile_n=1, tile_k=1)
"""Workers that share tiles."""


def generated(count: int, seed: int = 0) -> list[StreamK]:
    """Sizes with ragged tiles, more workers than tiles, and every variant in turn."""
    random = Random(seed)
    methods = []
    for number in range(count):
        tiles = [random.randint(1, 3) for _ in range(3)]
        sizes = [
            random.randint(tile, tile * longest)
            for tile, longest in zip(tiles, (4, 6, 4), strict=True)
        ]
        methods.append(
            StreamK(
                workers=random.randint(1, 9),
                M=sizes[0], N=sizes[1], K=sizes[2],
                tile_m=tiles[0], tile_n=tiles[1], tile_k=tiles[2],
                variant=VARIANTS[number % len(VARIANTS)],
            )
        )  # fmt: skip
    return methods


class LastOwns(WorkRule):
    """The worker of the last iteration owns a tile: it sends after it has waited."""

    def decisive(self, tile: Value, iterations: Value) -> Value:
        return (tile + 1) * iterations - 1


class ExtraWave(WorkRule):
    """One wave of whole tiles too many."""

    def waves(self, variant: Variant, whole: Value, rest: Value) -> Value:
        return whole + 1


class EqualTiles(WorkRule):
    """Every worker computes the first tile of a wave."""

    def whole_tile(self, worker: Value, wave: Value, workers: Value) -> Value:
        return wave * workers


@dataclass(frozen=True)
class Shifted(WorkRule):
    """Every formula has a number added to it."""

    at_begin: int = 0
    at_end: int = 0
    at_decisive: int = 0
    at_tile: int = 0
    at_waves: int = 0

    def begin(self, worker: Value, share: Value) -> Value:
        return super().begin(worker, share) + self.at_begin

    def end(self, worker: Value, share: Value) -> Value:
        return super().end(worker, share) + self.at_end

    def decisive(self, tile: Value, iterations: Value) -> Value:
        return super().decisive(tile, iterations) + self.at_decisive

    def whole_tile(self, worker: Value, wave: Value, workers: Value) -> Value:
        return super().whole_tile(worker, wave, workers) + self.at_tile

    def waves(self, variant: Variant, whole: Value, rest: Value) -> Value:
        return super().waves(variant, whole, rest) + self.at_waves


def shifted_rules() -> list[Shifted]:
    """All shifts by one of the line's formulas, and of those of whole tiles."""
    ones = (-1, 0, 1)
    line = [Shifted(*shifts) for shifts in product(ones, repeat=3)]
    return [*line, *(Shifted(at_tile=tile, at_waves=waves) for tile, waves in product(ones, ones))]


WRONG_RULES: dict[str, tuple[WorkRule, str]] = {
    "short shares": (
        Shifted(at_end=-1),
        "coverage: workers=1, tiles=1, iterations=1: expected iteration 0 on one worker, got none",
    ),
    "long shares": (
        Shifted(at_end=1),
        "coverage: workers=2, tiles=1, iterations=2: expected iteration 1 on one worker, "
        "got workers 0, 1",
    ),
    "late shares": (
        Shifted(at_begin=1, at_end=1),
        "coverage: workers=1, tiles=1, iterations=1: expected iteration 0 on one worker, got none",
    ),
    "last worker owns": (
        LastOwns(),
        "deadlock-freedom: workers=2, tiles=1, iterations=2: expected worker 1 to wait for later "
        "workers only, got worker 0 for tile 0",
    ),
    "second worker owns": (
        Shifted(at_decisive=1),
        "completion: workers=1, tiles=1, iterations=1: expected one owner of tile 0 out of "
        "worker 0, got none",
    ),
    "extra wave": (
        ExtraWave(),
        "coverage: workers=1, tiles=1, iterations=1: expected whole tiles below 1 under basic, "
        "got 1",
    ),
    "equal tiles": (
        EqualTiles(),
        "coverage: workers=2, tiles=1, iterations=1: expected whole tiles once under "
        "data-parallel, got [0, 0]",
    ),
}
"""Kind -> a wrong rule, and the first property that is refuted, with its smallest sizes."""
