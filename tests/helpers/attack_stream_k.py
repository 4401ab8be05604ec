"""The integer test set of Stream-K on real matrices, `python tests/helpers/attack_stream_k.py`.

Every product of 1 to 24 by 1 to 24 tiles, with an inner dim of 128 to 16,384, under every variant:
18,432 cases. The number of workers, the last tile of each dim and the order in which workers run
are drawn at random. All results are compared with the dense product by ==.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import NamedTuple

import numpy as np
from long_runs import judged

from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS
from primepar.reference.stream_k import stream_k_product

TILES = range(1, 25)
INNER = tuple(2**power for power in range(7, 15))
TILE, INNER_TILE, MOST_WORKERS, LARGEST = 2, 32, 132, 4


class Exact(NamedTuple):
    """Whether one case is exact, and how many partial tiles it has."""

    text: str
    equal: bool
    partial: int


def every_case() -> Iterator[tuple[int, int, int, str]]:
    """Yield tiles along M and K, the inner dim and the variant."""
    return product(TILES, TILES, INNER, VARIANTS)


def compare(case: tuple[int, int, int, str]) -> Exact:
    """Compute one case by the workers in a random order, and by NumPy."""
    rows, columns, inner, variant = case
    random = Random(f"{case}")
    method = StreamK(
        workers=random.randint(1, MOST_WORKERS),
        M=TILE * rows - random.randint(0, rows > 1),
        N=inner - random.choice((0, 0, random.randint(0, INNER_TILE - 1))),
        K=TILE * columns - random.randint(0, columns > 1),
        tile_m=TILE, tile_n=INNER_TILE, tile_k=TILE, variant=variant,  # type: ignore[arg-type]
    )  # fmt: skip
    rng = np.random.default_rng(random.getrandbits(32))
    shapes = (method.M, method.N), (method.N, method.K)
    I_MN, W_NK = (rng.integers(-LARGEST, LARGEST + 1, shape).astype(float) for shape in shapes)
    order = random.sample(range(method.workers), method.workers)
    equal = np.array_equal(stream_k_product(method, I_MN, W_NK, order), I_MN @ W_NK)
    partial = sum(len(part.senders) for parts in method.split.parts for part in parts)
    return Exact(method.text, equal, partial)


def main() -> None:
    """Compare all cases. Exits with 1 if one differs."""
    cases = list(every_case())
    results = list(judged("Stream-K", compare, cases, 2, len(cases)))
    wrong = [result.text for result in results if not result.equal]
    shared = sum(result.partial > 0 for result in results)
    print(f"{len(results)} cases, {shared} of them with partial tiles: {len(wrong)} differ")
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))


if __name__ == "__main__":
    main()
