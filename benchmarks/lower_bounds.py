"""How near the lower bound of a training step is to the best schedule, and methods to the bound.

The best schedule of few blocks is searched: every assignment of the block products of forward,
backward and gradient to devices with equal work. A device keeps what it has between phases.

    python -m benchmarks.lower_bounds
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.lower_bound import training_step

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


def gap_lines() -> Iterator[str]:
    """The best schedule of few blocks over the bound, as text."""
    yield "slices  devices  M, N, K               best     bound  best/bound"
    for cuts, devices, shape in SMALL:
        best, bound = optimum(cuts, devices, shape), training_step(*shape, devices)
        sizes = ", ".join(map(str, shape))
        yield (
            f"{'x'.join(map(str, cuts)):7} {devices:7}  {sizes:18} {best:9.0f} {bound:9.0f} "
            f"{best / bound:11.2f}"
        )


def main() -> None:
    """Print the tables."""
    for line in gap_lines():
        print(line)


if __name__ == "__main__":
    main()
