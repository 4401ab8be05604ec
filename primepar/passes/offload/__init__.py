"""Chunks of tensors between host and device memory, under a limit of device memory."""

from primepar.passes.offload.chunks import (
    ChunkLayout,
    ChunkSize,
    best_chunk_size,
    chunk_sizes,
    largest_state,
    packed,
    state_chunks,
)
from primepar.passes.offload.insert import (
    POLICIES,
    Policy,
    Trace,
    furthest_next_use,
    least_limit,
    least_recently_used,
    moved_elements,
    offload,
    transfers,
    with_copies,
)

__all__ = [
    "POLICIES",
    "ChunkLayout",
    "ChunkSize",
    "Policy",
    "Trace",
    "best_chunk_size",
    "chunk_sizes",
    "furthest_next_use",
    "largest_state",
    "least_limit",
    "least_recently_used",
    "moved_elements",
    "offload",
    "packed",
    "state_chunks",
    "transfers",
    "with_copies",
]
