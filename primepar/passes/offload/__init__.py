"""Chunks of tensors between host and device memory, under a limit of device memory."""

from primepar.passes.offload.chunks import (
    ChunkLayout,
    ChunkSize,
    ChunkState,
    TensorState,
    best_chunk_size,
    chunk_sizes,
    chunk_state,
    largest_state,
    packed,
    state_chunks,
)
from primepar.passes.offload.insert import least_limit, moved_elements, offload, with_copies
from primepar.passes.offload.policies import (
    POLICIES,
    Policy,
    Trace,
    furthest_next_use,
    least_recently_used,
    transfers,
)

__all__ = [
    "POLICIES",
    "ChunkLayout",
    "ChunkSize",
    "ChunkState",
    "Policy",
    "TensorState",
    "Trace",
    "best_chunk_size",
    "chunk_sizes",
    "chunk_state",
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
