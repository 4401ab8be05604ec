"""Chunks, their states, the choice of what to evict, and the search for a chunk size."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import combinations
from random import Random

import pytest

from primepar.errors import MemoryLimitError
from primepar.passes.offload import (
    ChunkState,
    TensorState,
    Trace,
    best_chunk_size,
    chunk_sizes,
    chunk_state,
    furthest_next_use,
    least_recently_used,
    packed,
    transfers,
)
from primepar.passes.offload.chunk_size import candidates

TRACES = 300


def test_tensors_are_packed_in_order_and_fill_their_chunks() -> None:
    layout = packed({"a": 4, "b": 5, "c": 3, "d": 10}, 10)
    assert layout.chunks == (("a", "b"), ("c",), ("d",))
    assert layout.places == {"a": 0, "b": 0, "c": 1, "d": 2}
    assert (layout.elements, str(layout.utilisation)) == (30, "11/15")
    assert [list(layout.group(chunk, 2)) for chunk in range(3)] == [[0, 1], [0, 1], [2]]


def test_a_chunk_that_is_smaller_than_the_largest_tensor() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        packed({"a": 4, "b": 12, "c": 11}, 10)
    assert str(caught.value) == (
        "chunk: expected at least the 12 elements of the largest tensor, b, got 10: take 12 or more"
    )


def test_the_state_of_a_chunk_follows_from_its_tensors() -> None:
    free, compute, hold = TensorState.FREE, TensorState.COMPUTE, TensorState.HOLD
    forward, backward = TensorState.HOLD_AFTER_FWD, TensorState.HOLD_AFTER_BWD
    assert chunk_state([]) is chunk_state([free, free]) is ChunkState.FREE
    assert chunk_state([hold, free, compute, backward]) is ChunkState.COMPUTE
    assert chunk_state([backward, hold, forward]) is ChunkState.HOLD
    assert chunk_state([backward, forward, free]) is ChunkState.HOLD_AFTER_FWD
    assert chunk_state([backward, free]) is ChunkState.HOLD_AFTER_BWD
    assert chunk_state([hold], released=True) is ChunkState.RELEASED
    assert [state.name for state in ChunkState if state.moves] == [
        "HOLD", "HOLD_AFTER_FWD", "HOLD_AFTER_BWD",
    ]  # fmt: skip


def fewest(trace: Trace, room: int) -> int:
    """The fewest transfers of a trace, by a search over all choices of what to evict."""
    start: tuple[int, frozenset[object]] = (0, frozenset())
    costs, queue, best = {start: 0}, deque([start]), 10**9
    while queue:
        moment, here = queue.popleft()
        cost = costs[moment, here]
        if moment == len(trace):
            best = min(best, cost + len(here))
            continue
        needed = frozenset(trace[moment])
        after, missing = here | needed, len(needed - here)
        for size in range(len(after - needed) + 1):
            for gone in combinations(sorted(after - needed, key=str), size):
                left = after - set(gone)
                if len(left) > room:
                    continue
                state, total = (moment + 1, left), cost + missing + size
                if total < costs.get(state, 10**9):
                    costs[state] = total
                    queue.append(state)
    return best


def traces() -> list[tuple[Trace, int]]:
    random = Random(0)
    made: list[tuple[Trace, int]] = []
    for _ in range(TRACES):
        chunks, room = random.randint(2, 5), random.randint(2, 3)
        trace = [
            random.sample(range(chunks), random.randint(1, min(2, chunks)))
            for _ in range(random.randint(3, 8))
        ]
        made.append((trace, room))
    return made


def test_the_furthest_next_use_has_as_few_transfers_as_a_search_and_never_more_than_lru() -> None:
    """Chunks of one size; fetches and evictions both count, with the states on the host between."""
    fewer = 0
    for trace, room in traces():
        known = transfers(trace, room, furthest_next_use)
        oldest = transfers(trace, room, least_recently_used)
        assert known == fewest(trace, room)
        assert known <= oldest
        fewer += known < oldest
    assert fewer > TRACES // 20  # the two differ often enough to be a comparison


def test_the_next_use_may_be_in_the_next_step() -> None:
    uses: dict[Hashable, list[int]] = {"a": [0, 3], "b": [1], "c": [2]}
    assert [furthest_next_use(uses, 4, chunk, 2) for chunk in "abcd"] == [3, 5, 6, 8]
    assert [least_recently_used(uses, 4, chunk, 2) for chunk in "abcd"] == [2, 1, 0, 8]


def test_too_many_chunks_at_one_moment() -> None:
    with pytest.raises(ValueError, match=r"^expected room for 3 chunks, got 2$"):
        transfers([["a", "b", "c"]], 2, furthest_next_use)


def test_the_search_takes_the_valid_size_with_the_least_unused_memory() -> None:
    sizes = {f"w{place}": size for place, size in enumerate((6, 4, 4, 6, 3, 7))}
    assert list(candidates(sizes, 5)) == [10, 15, 20, 25, 30]
    found = chunk_sizes(sizes, range(7, 13), device=22)
    assert [(known.layout.capacity, known.waste, known.valid) for known in found] == [
        (7, 12, True), (8, 10, True), (9, 6, True), (10, 0, True), (11, 3, True), (12, 6, False),
    ]  # fmt: skip
    assert best_chunk_size(sizes, device=22).layout.capacity == 10
    assert best_chunk_size(sizes, device=18).layout.capacity == 9
    with pytest.raises(MemoryLimitError) as caught:
        best_chunk_size(sizes, device=10, host=100)
    assert str(caught.value) == (
        "memory: expected at least 14 elements on the device, two chunks of the largest tensor, "
        "and 168 with the host, got 10 and 100: allow more"
    )
