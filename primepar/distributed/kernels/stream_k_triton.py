"""The Stream-K kernel in Triton: each program follows one worker's list of parts.

Import it after `stream_k.prepare`: Triton decides here whether it compiles or interprets.

A program draws a ticket, and the first ticket is the last worker. So a worker waits only for
workers that have started before it, and those post before they wait. The kernel ends even if the
GPU runs one program at a time; Triton's interpreter does so.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE, START, STOP, OWNS, SENDERS = (tl.constexpr(column) for column in range(5))
"""Columns of the table of parts."""
COLUMNS = tl.constexpr(5)


@triton.jit
def stream_k_kernel(
    I_ptr: tl.tensor, W_ptr: tl.tensor, O_ptr: tl.tensor,
    partial_ptr: tl.tensor, flag_ptr: tl.tensor, ticket_ptr: tl.tensor,
    part_ptr: tl.tensor, first_ptr: tl.tensor,
    M: tl.tensor, N: tl.tensor, K: tl.tensor, workers: tl.tensor, columns: tl.tensor,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    """Compute `O[M, K] = I[M, N] W[N, K]`, all contiguous.

    `part_ptr` has a row for each part of a tile, and `first_ptr` the first row of each worker.
    `partial_ptr` has a tile for each worker in float32, `flag_ptr` a zero, `ticket_ptr` one zero.
    """
    worker = workers - 1 - tl.atomic_add(ticket_ptr, 1)
    inside = tl.arange(0, BM)[:, None] * BK + tl.arange(0, BK)[None, :]
    last = tl.load(first_ptr + worker + 1)
    for row in range(tl.load(first_ptr + worker), last):
        part = part_ptr + row * COLUMNS
        tile = tl.load(part + TILE)
        sums = _products(
            I_ptr, W_ptr, tile // columns, tile % columns, tl.load(part + START),
            tl.load(part + STOP), M, N, K, BM, BN, BK,
        )  # fmt: skip
        if tl.load(part + OWNS) == 0:
            tl.store(partial_ptr + worker * BM * BK + inside, sums)
            tl.debug_barrier()
            tl.atomic_xchg(flag_ptr + worker, 1, sem="release")
        else:
            for sender in range(worker + 1, worker + 1 + tl.load(part + SENDERS)):
                while tl.atomic_add(flag_ptr + sender, 0, sem="acquire") == 0:
                    pass
                sums += tl.load(partial_ptr + sender * BM * BK + inside, cache_modifier=".cg")
            rows = tile // columns * BM + tl.arange(0, BM)
            cols = tile % columns * BK + tl.arange(0, BK)
            within = (rows[:, None] < M) & (cols[None, :] < K)
            tl.store(O_ptr + rows[:, None].to(tl.int64) * K + cols[None, :], sums, mask=within)


@triton.jit
def _products(
    I_ptr: tl.tensor, W_ptr: tl.tensor,
    m: tl.tensor, k: tl.tensor, start: tl.tensor, stop: tl.tensor,
    M: tl.tensor, N: tl.tensor, K: tl.tensor,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the partial sum of some iterations of tile (m, k), in float32."""
    rows, cols = m * BM + tl.arange(0, BM), k * BK + tl.arange(0, BK)
    sums = tl.zeros((BM, BK), dtype=tl.float32)
    for n in range(start, stop):
        inner = n * BN + tl.arange(0, BN)
        left = tl.load(
            I_ptr + rows[:, None].to(tl.int64) * N + inner[None, :],
            mask=(rows[:, None] < M) & (inner[None, :] < N),
            other=0.0,
        )
        right = tl.load(
            W_ptr + inner[:, None].to(tl.int64) * K + cols[None, :],
            mask=(inner[:, None] < N) & (cols[None, :] < K),
            other=0.0,
        )
        sums = tl.dot(left, right, sums, input_precision="ieee")
    return sums
