"""Offloading: chunks, the choice of what to evict, and programs that keep a limit.

That it keeps any limit on generated programs is in `test_promises`; that wrong transfers are
refuted, in `test_mutants`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import combinations
from random import Random

import pytest
from msgspec.structs import replace
from offload_cases import SMALL, limited, random_sizes, resident
from pass_cases import addition, free, local, refuted
from profiles import IS_LONG, few

from primepar import check
from primepar.errors import MemoryLimitError, ProgramError
from primepar.operators import StepOptions, lower_step
from primepar.operators.optimizers import Optimizer
from primepar.partition import parse_sequence
from primepar.partition.patrickstar import PatrickStar
from primepar.passes.block_uses import Rank, RankList
from primepar.passes.liveness import peaks
from primepar.passes.offload import (
    Trace,
    best_chunk_size,
    chunk_sizes,
    furthest_next_use,
    largest_state,
    least_limit,
    least_recently_used,
    moved_elements,
    offload,
    packed,
    state_chunks,
    transfers,
)
from primepar.passes.offload.chunks import candidates
from primepar.passes.offload.insert import Moments, Residency
from primepar.plan.presets import uniform_plan
from primepar.schedule.program import Evict, Fetch

SEQUENCES = ("", "M2", "K2", "N2", "P2x2")
TRACES = 2000 if IS_LONG else 300
SIZES = 500 if IS_LONG else 25

# Chunks


def test_tensors_are_packed_in_order_and_fill_their_chunks() -> None:
    layout = packed({"a": 4, "b": 5, "c": 3, "d": 10}, 10)
    assert layout.chunks == (("a", "b"), ("c",), ("d",))
    assert layout.places == {"a": 0, "b": 0, "c": 1, "d": 2}
    assert (layout.elements, str(layout.utilisation)) == (30, "11/15")
    assert [list(layout.group(chunk, 2)) for chunk in range(3)] == [[0, 1], [0, 1], [2]]


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


def test_copies_and_moments_have_the_places_of_their_parameters() -> None:
    """Whatever the optimizer keeps: both moments and a copy, or the copy alone."""
    plan = uniform_plan(SMALL, parse_sequence("P2x2"))
    cases: dict[Optimizer, set[str]] = {"adamw": {"m", "v", "master"}, "sgd": {"master"}}
    for optimizer, kept in cases.items():
        options = StepOptions(optimizer=optimizer, masters=True)
        step = lower_step(plan, 2, 4, options=options)
        (chunks, *_) = state_chunks(step, largest_state(step))
        places = {name: place.split() for name, place in chunks.items() if ".new[" not in name}
        parameters = {
            name: number for name, (kind, number) in places.items() if kind == "parameter"
        }
        assert {kind for kind, _ in places.values()} == {"parameter", "gradient", *kept}
        for name, number in parameters.items():
            tensor, _, index = name.partition("[")
            for kind in kept:
                assert places[f"{tensor}.{kind}[{index}"] == [kind, number]
                assert chunks[f"{tensor}.{kind}.new[{index}"] == f"{kind} {number}"


# What is evicted


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


# Programs


@few
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_step_under_the_least_limit_is_proved_and_keeps_it(sequence: str) -> None:
    program, limit = limited(sequence), least_limit(resident(sequence))
    assert refuted(program) == set()
    assert max(peaks(program)) == limit < min(peaks(resident(sequence)))
    assert program.memory is not None
    assert program.memory.device == limit
    assert all(len(set(blocks)) > 10 for blocks in program.host_initial or ())
    assert check(program).equal


@few
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_smaller_limit_moves_no_less_and_never_more_than_least_recently_used(
    sequence: str,
) -> None:
    step = resident(sequence)
    least, most = least_limit(step), max(peaks(step))
    chunks = state_chunks(step, largest_state(step))
    moved = []
    for limit in (most, (least + most) // 2, least):
        program = offload(step, limit)
        moved.append(sum(moved_elements(program)))
        for rank, known in enumerate(moved_elements(program)):
            moments = Moments(step, rank, chunks[rank])
            runs = [Residency(moments, policy, limit)
                    for policy in (furthest_next_use, least_recently_used)]  # fmt: skip
            assert known == min(run.moved for run in runs)
    assert moved == sorted(moved)
    assert moved[0] > 0


def test_whole_chunks_move_together() -> None:
    step = resident("")
    chunks = state_chunks(step, 2 * largest_state(step))
    program = offload(step, least_limit(step, chunks=chunks), chunks=chunks)
    live, host = set(program.initial[0] if program.initial else ()), set[str]()
    host |= set(program.host_initial[0] if program.host_initial else ())
    line = RankList(program.programs[0], Rank(0))
    for node, used in zip(line.nodes, line.uses, strict=True):
        if isinstance(node, Evict | Fetch):
            live, host = live ^ {node.block}, host ^ {node.block}
            continue
        live = (live - set(used.gone)) | set(used.made)
        split = {chunks[0].get(name) for name in live} & {chunks[0].get(name) for name in host}
        assert split <= {None}  # no chunk has blocks in both memories while an instruction runs
    assert refuted(program) == set()


def test_a_block_that_is_fetched_to_be_freed_is_within_the_limit() -> None:
    """x is evicted for z, and comes back before it is freed: then z has to go."""
    nodes = [addition("y", "x"), addition("y", "z"), free("x"), free("z")]
    given = local(nodes, {"x": 4, "y": 4, "z": 4}, initial=[["y[0]"]], final=[["y[0]"]])
    made = offload(given, least_limit(given))
    assert least_limit(given) == max(peaks(made)) == 8
    assert refuted(made) == refuted(given) == set()


def test_a_program_that_ends_with_the_loss_has_its_parameters_back_on_the_host() -> None:
    step = lower_step(uniform_plan(SMALL, parse_sequence("K2")), 2, 4, "loss")
    program = offload(step, least_limit(step))
    assert program.final == (("loss[0]",),) * 2
    assert [set(blocks) for blocks in program.host_final or ()] == [
        set(blocks) for blocks in program.host_initial or ()
    ]
    assert refuted(program) == set()


def test_patrickstar_of_generated_sizes_is_proved_and_exact() -> None:
    random, moving = Random(0), 0
    for _ in range(SIZES):
        method = random_sizes(random)
        program = method.program()
        assert refuted(program) == set(), method
        assert check(program).equal, method
        assert program.memory is not None
        assert max(peaks(program)) <= (program.memory.device or 0)
        moving += any(isinstance(node, Evict) for node in program.programs[0])
    assert moving == SIZES  # all states begin and end on the host


# What is refused


def test_a_chunk_that_is_smaller_than_the_largest_tensor() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        packed({"a": 4, "b": 12, "c": 11}, 10)
    assert str(caught.value) == (
        "chunk: expected at least the 12 elements of the largest tensor, b, got 10: take 12 or more"
    )


def test_a_limit_below_the_minimum() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        offload(resident(""), 100)
    least = least_limit(resident(""))
    assert str(caught.value) == (
        f"device memory: expected at least {least} elements, which one instruction needs together "
        f"with what cannot move, got 100: take {least} or more, or smaller chunks"
    )
    offload(resident(""), least)


def test_a_chunk_that_is_smaller_than_a_block() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        offload(resident(""), 10**6, capacity=255)
    assert str(caught.value) == (
        "chunk: expected at least the 256 elements of the largest tensor, "
        "blocks.0.fc1.weight[0,0], got 255: take 256 or more"
    )


def test_programs_that_cannot_be_offloaded() -> None:
    with pytest.raises(ProgramError, match=r"^expected a program without transfers between host "):
        offload(limited(""), 10**6)
    with pytest.raises(ProgramError, match=r"^expected final in a program that is to be offloaded"):
        offload(replace(resident(""), final=None), 10**6)


def test_patrickstar_sizes_that_do_not_fit() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        PatrickStar(hidden=3, chunk=8)
    assert str(caught.value) == (
        "chunk: expected at least the 9 elements of the largest tensor, W1, got 8: take 9 or more"
    )
    with pytest.raises(MemoryLimitError) as caught:
        PatrickStar(device=27).program()
    assert str(caught.value) == (
        "device memory: expected at least 28 elements, which one instruction needs together with "
        "what cannot move, got 27: take 28 or more, or smaller chunks"
    )
