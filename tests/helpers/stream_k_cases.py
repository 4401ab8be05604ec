"""Generated sizes of Stream-K, wrong divisions of its work, and wrong programs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from msgspec.structs import replace

from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, Variant, WorkRule
from primepar.schedule.primitive import Value
from primepar.schedule.program import Compute, Free, Instruction, ISend, Program, Recv, Wait

Rank = list[Instruction]


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


class ShortShares(WorkRule):
    """The last iteration of every share is left out."""

    def end(self, worker: Value, share: Value) -> Value:
        return (worker + 1) * share - 1


class LongShares(WorkRule):
    """A share ends with the first iteration of the next one."""

    def end(self, worker: Value, share: Value) -> Value:
        return (worker + 1) * share + 1


class LateShares(WorkRule):
    """All shares begin one iteration late."""

    def begin(self, worker: Value, share: Value) -> Value:
        return worker * share + 1

    def end(self, worker: Value, share: Value) -> Value:
        return (worker + 1) * share + 1


class LastOwns(WorkRule):
    """The worker of the last iteration owns a tile: it sends after it has waited."""

    def decisive(self, tile: Value, iterations: Value) -> Value:
        return (tile + 1) * iterations - 1


class SecondOwns(WorkRule):
    """The worker of the second iteration owns a tile, whether it has one or not."""

    def decisive(self, tile: Value, iterations: Value) -> Value:
        return tile * iterations + 1


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
        ShortShares(),
        "coverage: workers=1, tiles=1, iterations=1: expected iteration 0 on one worker, got none",
    ),
    "long shares": (
        LongShares(),
        "coverage: workers=2, tiles=1, iterations=2: expected iteration 1 on one worker, "
        "got workers 0, 1",
    ),
    "late shares": (
        LateShares(),
        "coverage: workers=1, tiles=1, iterations=1: expected iteration 0 on one worker, got none",
    ),
    "last worker owns": (
        LastOwns(),
        "deadlock-freedom: workers=2, tiles=1, iterations=2: expected worker 1 to wait for later "
        "workers only, got worker 0 for tile 0",
    ),
    "second worker owns": (
        SecondOwns(),
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


def wrong_programs(program: Program) -> Iterator[tuple[str, str, Program]]:
    """Yield the kind of every wrong program, the property that it breaks, and the program."""
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            for kind, (property_, change) in CHANGES.items():
                changed = change(list(instructions), place, node)
                if changed is not None:
                    yield kind, property_, with_rank(program, rank, changed)


def with_rank(program: Program, rank: int, instructions: Rank) -> Program:
    """Replace the instructions of a rank."""
    programs = [*program.programs]
    programs[rank] = tuple(instructions)
    return replace(program, programs=tuple(programs))


def _no_flag(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Leave out a post, and the wait for it."""
    if not isinstance(node, ISend):
        return None
    return [other for other in nodes if other not in (node, Wait(node.request))]


def _no_wait_for_it(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Leave out a receive; what is added was never written."""
    return nodes[:place] + nodes[place + 1 :] if isinstance(node, Recv) else None


def _early_read(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Add a partial tile before it is received."""
    if not isinstance(node, Recv):
        return None
    return [*nodes[:place], nodes[place + 1], node, *nodes[place + 2 :]]


def _early_post(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Post a partial tile before its last product."""
    if not isinstance(node, ISend):
        return None
    return [*nodes[: place - 1], node, nodes[place - 1], *nodes[place + 1 :]]


def _left_out(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Leave out an iteration of a tile that has others on the same worker."""
    if not _is_product(node) or not _has_neighbour(nodes, place):
        return None
    return nodes[:place] + nodes[place + 1 :]


def _twice(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Compute an iteration twice."""
    return [*nodes[:place], node, *nodes[place:]] if _is_product(node) else None


def _added_twice(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Add a partial tile twice."""
    if not isinstance(node, Compute) or _is_product(node):
        return None
    return [*nodes[:place], node, *nodes[place:]]


def _never_added(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Receive a partial tile and drop it."""
    if not isinstance(node, Compute) or _is_product(node):
        return None
    return nodes[:place] + nodes[place + 1 :]


def _freed_early(nodes: Rank, place: int, node: Instruction) -> Rank | None:
    """Free a partial tile while its message is in flight."""
    if not isinstance(node, Wait):
        return None
    return [*nodes[:place], nodes[place + 1], node, *nodes[place + 2 :]]


def _is_product(node: Instruction) -> bool:
    return isinstance(node, Compute) and node.phase is not None


def _has_neighbour(nodes: Rank, place: int) -> bool:
    node = nodes[place]
    assert isinstance(node, Compute)
    near = [nodes[index] for index in (place - 1, place + 1) if 0 <= index < len(nodes)]
    return any(_is_product(one) and one.accumulates == node.accumulates  # type: ignore[union-attr]
               for one in near)  # fmt: skip


CHANGES: dict[str, tuple[str, Callable[[Rank, int, Instruction], Rank | None]]] = {
    "no flag": ("deadlock-freedom", _no_flag),
    "no wait": ("deadlock-freedom", _no_wait_for_it),
    "early read": ("placement", _early_read),
    "early post": ("races", _early_post),
    "left out": ("coverage", _left_out),
    "twice": ("coverage", _twice),
    "added twice": ("completion", _added_twice),
    "never added": ("completion", _never_added),
    "freed early": ("races", _freed_early),
}
"""Kind -> the property that it breaks, and the change of one rank; None where it has no place."""


def right_programs(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield programs in another order that are as right."""
    for rank, instructions in enumerate(program.programs):
        nodes = list(instructions)
        posts = [node for node in nodes if isinstance(node, ISend)]
        if posts:
            rest = [node for node in nodes if node not in posts]
            end = next(index for index, node in enumerate(rest) if isinstance(node, Wait))
            yield "post late", with_rank(program, rank, [*rest[:end], *posts, *rest[end:]])
        for place in range(len(nodes) - 1):
            first, second = nodes[place : place + 2]
            if _is_product(first) and _is_product(second):
                swapped = [*nodes[:place], second, first, *nodes[place + 2 :]]
                yield "products swapped", with_rank(program, rank, swapped)
                break
        frees = [node for node in nodes if isinstance(node, Free)]
        if frees:
            kept = [node for node in nodes if node not in frees[-1:]]
            yield "not freed", replace(with_rank(program, rank, kept), memory=None)
