"""How near is the lower bound of a training step to the best schedule, and methods to the bound?

The best schedule of few blocks is searched: every assignment of the block products of forward,
backward and gradient to devices with equal work. A device keeps what it has between phases.

Then the best registered primitive for a limit of what is kept between forward and backward: of I, W
and dO one copy, two copies, any. It is chosen by its formula, run on emulated devices, and counted
there. Every dim is `SCALE` times smaller: bound and bytes are parts of MN, NK and MK, or of
(MNK)^(2/3), so what is sent over the bound is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations, product
from math import inf, prod
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import BenchRow, Case, Column, bench
from primepar.partition import PRIMITIVES
from primepar.reference import check
from primepar.schedule import Linear, Movement, Sequence
from primepar.schedule.lower_bound import starts_replicated, training_step

Sets = NDArray[np.int64]
"""Sets of products or blocks as bits: one row for each assignment, one column for each device."""

SMALL: tuple[tuple[tuple[int, int, int], int, tuple[int, int, int]], ...] = (
    ((2, 2, 2), 2, (4, 4, 4)),
    ((2, 2, 2), 2, (64, 8, 8)),
    ((2, 3, 2), 2, (12, 12, 12)),
    ((3, 3, 1), 3, (9, 9, 9)),
    ((3, 1, 3), 3, (9, 1, 9)),
    ((2, 2, 2), 4, (4, 4, 4)),
    ((2, 2, 2), 4, (2048, 1024, 4096)),
    ((2, 1, 4), 4, (2048, 1024, 4096)),
)
"""(Slices of M, N and K), devices, (M, N, K)."""


WANTED: tuple[tuple[tuple[int, int, int], int], ...] = (
    ((2048, 1024, 4096), 4),
    ((8192, 512, 2048), 4),
    ((4096, 512, 2048), 16),
    ((16384, 4096, 16384), 16),
    ((4096, 4096, 4096), 64),
)
"""(M, N, K), devices."""
SCALE = 32


def optimum(cuts: tuple[int, int, int], devices: int, shape: tuple[int, int, int]) -> float:
    """Least words per device over every assignment of block products with equal work.

    `cuts` are the slices of M, N and K. A block belongs to one of the devices that need it.
    """
    slices = list(product(*map(range, cuts)))
    sets = np.array(list(_assignments((1 << len(slices)) - 1, len(slices), devices)))
    (M, N, K), (m, n, k) = shape, cuts
    words_I, words_W, words_O = M * N / (m * n), N * K / (n * k), M * K / (m * k)
    inputs, weights, outputs = (
        _blocks(sets, [1 << (index[one] * cuts[two] + index[two]) for index in slices])
        for one, two in ((0, 1), (1, 2), (0, 2))
    )
    of_I, of_W, of_O = (
        words * np.bitwise_count(blocks).sum(axis=1)
        for words, blocks in ((words_I, inputs), (words_W, weights), (words_O, outputs))
    )
    # dO of backward (rows) and of gradient (columns): a block that both read is received once.
    both_O = words_O * sum(
        np.bitwise_count(column[:, None] | column[None]).astype(np.float64) for column in outputs.T
    )
    least = np.inf
    for first in np.flatnonzero((np.diff(sets, axis=1) > 0).all(axis=1)):
        both_I = words_I * np.bitwise_count(inputs[first] | inputs).sum(axis=1)
        both_W = words_W * np.bitwise_count(weights[first] | weights).sum(axis=1)
        rest = both_O + (both_W + of_I)[:, None] + (both_I + of_W)[None]
        least = min(least, float(of_O[first] + rest.min()))
    return (least - 2 * (M * N + N * K + M * K)) / devices


def _assignments(left: int, count: int, devices: int) -> Iterator[tuple[int, ...]]:
    """Every way to give `devices` devices equally many of the `count` products in `left`."""
    if devices == 1:
        yield (left,)
        return
    places = [place for place in range(left.bit_length()) if left >> place & 1]
    for some in combinations(places, count // devices):
        taken = sum(1 << place for place in some)
        for others in _assignments(left & ~taken, count - len(some), devices - 1):
            yield (taken, *others)


def _blocks(sets: Sets, block_of: list[int]) -> Sets:
    """The blocks of a tensor that each set of products needs."""
    blocks = np.zeros_like(sets)
    for place, block in enumerate(block_of):
        blocks |= np.where(sets >> place & 1, block, 0)
    return blocks


class GapRow(BenchRow, frozen=True):
    """The best schedule of few blocks over the bound."""

    cuts: Annotated[tuple[int, int, int], Column("slices", "x")]
    devices: Annotated[int, Column("devices")]
    shape: Annotated[tuple[int, int, int], Column("M, N, K", ", ")]
    best: Annotated[float, Column("best", ".0f")]
    bound: Annotated[float, Column("bound", ".0f")]

    @property
    def ratio(self) -> Annotated[float, Column("best/bound", ".2f")]:
        """The best over the bound."""
        return self.best / self.bound


def gap(cuts: tuple[int, int, int], devices: int, shape: tuple[int, int, int]) -> GapRow:
    """Search the best schedule."""
    best, bound = optimum(cuts, devices, shape), training_step(*shape, devices)
    return GapRow(cuts, devices, shape, best, bound)


class MeshChoice(NamedTuple):
    """A sequence on a mesh: words per device that it sends, keeps of I, W and dO, and holds."""

    sent: float
    kept: float
    held: float
    sequence: Sequence


def choices(operator: Linear, devices: int) -> Iterator[MeshChoice]:
    """Every registered primitive with one copy at the start, on every mesh that fits."""
    lengths = [length for length in range(1, devices + 1) if devices % length == 0]
    for kind in PRIMITIVES.values():
        for sides in product(lengths, repeat=len(kind().side_names)):
            sequence = Sequence.of(kind(), *sides)
            (element,) = sequence.elements
            if prod(element.axis_lengths) != devices:
                continue
            if any(operator.size(dim) % cuts for dim, cuts in sequence.grid.items()):
                continue
            movement = Movement(sequence)
            sent, held = element.sent(operator), element.held(operator)
            if sent is not None and held is not None and not starts_replicated(movement):
                kept = kept_words(movement, operator)
                yield MeshChoice(float(sent), kept, float(held), sequence)


def kept_words(movement: Movement, operator: Linear) -> float:
    """Most words of I, W and dO on a device between forward and backward."""
    reads = (("gradient", "I"), ("backward", "W"), ("gradient", "dO"))
    return max(
        sum(
            len(movement.start(phase, tensor)[rank])
            * prod(operator.block_shape(tensor, movement.sequence.grid))
            for phase, tensor in reads
        )
        for rank in range(movement.sequence.ranks)
    )


def grids(shape: tuple[int, int, int], devices: int, *, kept: bool) -> float:
    """Least words per device with a grid of devices for each phase, whichever they are.

    What a device needs of an operand in two phases is counted as if one part contained the other.
    """
    lengths = [length for length in range(1, devices + 1) if devices % length == 0]
    parts = [
        (one, two, devices // (one * two))
        for one, two in product(lengths, repeat=2)
        if devices % (one * two) == 0
    ]
    M, N, K = shape
    u, v, w = M * N / devices, N * K / devices, M * K / devices
    least = inf
    for forward, backward, gradient in product(parts, repeat=3):
        of_I, of_W = (forward[0], gradient[0]), (forward[1], backward[1])
        copies_I, copies_W = (max(of_I), max(of_W)) if kept else (sum(of_I) - 1, sum(of_W) - 1)
        copies_O = max(backward[2], gradient[2]) + forward[2]
        words = u * (copies_I + backward[0]) + v * (copies_W + gradient[1]) + w * copies_O
        least = min(least, words - 2 * (u + v + w))
    return least


def tiles(shape: tuple[int, int, int], devices: int) -> float:
    """Least words per device where each works on a tile of the largest tensor, and keeps all.

    Tiles have one area. They are in rows, which may have one tile more than others, and then are
    higher. With k rows a device needs k parts of one tensor, and as many of the other one as there
    are tiles in its row.
    """
    M, N, K = shape
    v, u, _ = sorted((M * N / devices, N * K / devices, M * K / devices))
    least = inf
    for (one, other), rows in product(((u, v), (v, u)), range(1, devices + 1)):
        few, more = divmod(devices, rows)
        along = ((rows - more) * few**2 + more * (few + 1) ** 2) / devices
        least = min(least, 2 * (one * rows + other * along - one - other))
    return least


class FrontierRow(BenchRow, frozen=True):
    """The best primitive for a shape within a limit of copies, over the bound."""

    shape: Annotated[tuple[int, int, int], Column("M, N, K", ", ")]
    devices: Annotated[int, Column("devices")]
    copies: Annotated[str, Column("copies")]
    primitive: Annotated[str, Column("primitive")]
    kept: Annotated[float, Column("kept", ".2f")]
    peak: Annotated[float, Column("peak", ".2f")]
    sent: Annotated[float, Column("sent/bound", ".3f")]
    least: Annotated[float, Column("at least", ".3f")]
    any_grids: Annotated[float | None, Column("any grids", ".3f")]
    tiles: Annotated[float | None, Column("tiles", ".3f")]


def frontier(shape: tuple[int, int, int], devices: int) -> Iterator[FrontierRow]:
    """For a shape the best primitive within each limit of copies."""
    M, N, K = (size // SCALE for size in shape)
    operator, one_copy = Linear(M, N, K), (M * N + N * K + M * K) / devices
    bound, known = training_step(M, N, K, devices), list(choices(operator, devices))
    limits = {copies: copies * one_copy for copies in (1, 2, 10**9)}
    chosen = [
        min((one for one in known if one.kept <= limit), key=lambda choice: choice[:3])
        for limit in limits.values()
    ]
    for (copies, limit), best in zip(limits.items(), chosen, strict=True):
        report = check(best.sequence, operator)
        if not report.equal:
            raise SystemExit(f"{best.sequence}: {report.message}")
        least = training_step(M, N, K, devices, kept=limit - M * K / devices)
        any_grids = None if copies == 2 else grids((M, N, K), devices, kept=copies > 1) / bound
        of_tiles = tiles((M, N, K), devices) / bound if copies > 2 else None
        label = f"{copies}" if copies <= 2 else "any"
        yield FrontierRow(
            shape, devices, label, str(best.sequence), best.kept / one_copy,
            max(report.peak) / one_copy, float(sum(report.sent)) / devices / bound,
            least / bound, any_grids, of_tiles,
        )  # fmt: skip


def lower_bounds() -> Iterator[Case]:
    for case in SMALL:
        yield f"best of {case}", partial(gap, *case)
    for shape, devices in WANTED:
        yield f"{shape} on {devices}", partial(frontier, shape, devices)


if __name__ == "__main__":
    bench(lower_bounds)
