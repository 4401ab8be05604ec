"""The arena: no two buffers share bytes that both need, and little memory is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
import torch.distributed as dist
from conform_cases import RANKS, blocks_of, executor_of
from hypothesis import given
from hypothesis import strategies as st
from partitioned_cases import ON_FOUR
from step_cases import lowered
from torch.testing._internal.distributed.fake_pg import FakeStore

from primepar.distributed import Executor
from primepar.distributed.runtime.arena import ALIGNMENT, Lifetime, least_bytes, offsets
from primepar.distributed.runtime.buffer_owners import SIZES, choose_owners
from primepar.distributed.runtime.memory import Buffer, Slot
from primepar.distributed.runtime.messages import Action
from primepar.models.dropout import Draw
from primepar.operators import StepInputs


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    """Some buffers of a list of twenty instructions."""
    size, place = st.integers(0, 4 * ALIGNMENT), st.integers(0, 19)
    pairs = draw(st.lists(st.tuples(size, place, place), max_size=24))
    return [Lifetime(size, min(a, b), max(a, b)) for size, a, b in pairs]


def collisions(needed: list[Lifetime], places: list[int]) -> list[tuple[int, int]]:
    """Pairs of buffers that have bytes in common at an instruction that needs both."""
    placed = list(enumerate(zip(needed, places, strict=True)))
    return [
        (i, j)
        for (i, (one, start)), (j, (two, begin)) in combinations(placed, 2)
        if one.first <= two.last and two.first <= one.last
        and start < begin + two.bytes and begin < start + one.bytes
    ]  # fmt: skip


@given(lifetimes())
def test_buffers_that_are_needed_together_are_apart(needed: list[Lifetime]) -> None:
    places, total = offsets(needed)
    assert collisions(needed, places) == []
    assert all(place % ALIGNMENT == 0 for place in places)
    assert total >= least_bytes(needed)
    ends = [place + one.bytes for place, one in zip(places, needed, strict=True)]
    assert max(ends, default=0) <= total <= max(ends, default=0) + ALIGNMENT


def test_the_least_is_what_one_instruction_needs() -> None:
    needed = [Lifetime(64, 0, 2), Lifetime(65, 2, 3), Lifetime(64, 3, 3)]
    assert least_bytes(needed) == 64 + 128
    assert offsets(needed) == ([0, 64, 0], 192)


def test_memory_of_the_past_is_used_again() -> None:
    needed = [Lifetime(640, place, place + 1) for place in range(10)]
    assert offsets(needed)[1] == least_bytes(needed) == 1280


# On programs


@pytest.fixture
def alone() -> Iterator[None]:
    """Rank 0 of a world whose other ranks are not there: torch answers for them at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def lifetimes_of(executor: Executor) -> list[Lifetime]:
    buffers = [buffer for buffer, _ in executor._layout]
    return [Lifetime(buffer.bytes, buffer.first, buffer.last) for buffer in buffers]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("plan", ON_FOUR)
def test_a_step_wastes_little_memory(plan: str) -> None:
    """The largest share of gaps is 13 %, of small steps; larger ones have less."""
    executor = executor_of(lowered(plan, RANKS, "gpt2"), "gpt2", None)
    needed = lifetimes_of(executor)
    assert collisions(needed, [first for _, first in executor._layout]) == []
    assert executor.arena_bytes <= 1.13 * least_bytes(needed)


def run_alone() -> Executor:
    """A step on one rank."""
    return executor_of(lowered("data", 1, "gpt2"), "gpt2", None, "P1x1")


def overwritten(wrong: int | None = None) -> dict[str, torch.Tensor]:
    """A step of one rank, in which memory is filled with NaN after the last instruction it is for.

    That of the buffer `wrong` is filled after the instruction that makes it.
    """
    executor = run_alone()
    ends: dict[int, list[Slot]] = {}
    for number, (buffer, _) in enumerate(executor._layout):
        end = buffer.first if number == wrong else buffer.last
        ends.setdefault(end, []).append(buffer.attach([None], lambda whole: whole))
    executor._serve(executor.mesh.arena._memory)
    actions: list[Action] = []
    place = 0
    for step in executor.steps:
        actions += step.actions
        for _ in step.instructions:
            actions += [_fill(slot) for slot in ends.get(place, ())]
            place += 1
    executor._running._actions = actions
    return executor(blocks_of(executor), StepInputs(Draw(0, 1), 1e-3, 1))


def _fill(slot: Slot) -> Action:
    return lambda frame: slot[0].fill_(torch.nan)


def finite(blocks: dict[str, torch.Tensor]) -> bool:
    return all(bool(block.isfinite().all()) for block in blocks.values())


def test_nothing_is_read_after_its_last_instruction() -> None:
    executor = run_alone()
    right = executor(blocks_of(executor), StepInputs(Draw(0, 1), 1e-3, 1))
    got = overwritten()
    assert finite(right)
    assert [name for name in right if not torch.equal(right[name], got[name])] == []
    buffers = len(run_alone()._layout)
    assert [number for number in range(0, buffers, 9) if finite(overwritten(number))] == []


# Which buffers are allocated


def owners(*needed: Lifetime, outputs: int = 0) -> list[str]:
    """The owners of buffers of these bytes, and of as many blocks of the caller at the end."""
    buffers = [Buffer((n.bytes,), torch.uint8, "arena", n.first, n.last) for n in needed]
    made = [Buffer((needed[0].bytes,), torch.uint8, "run", 9, 10) for _ in range(outputs)]
    choose_owners([*buffers, *made])
    return [buffer.owner for buffer in buffers]


def test_buffers_are_allocated_where_outputs_can_have_their_memory() -> None:
    smallest, largest = SIZES[-1], SIZES[0]
    activations = [Lifetime(smallest, 0, 8)] * 4
    assert owners(*activations) == ["arena"] * 4
    assert owners(*activations, outputs=1) == ["run"] * 4  # 4 instead of 5 blocks
    assert owners(*[Lifetime(smallest, 0, 9)] * 4, outputs=1) == ["arena"] * 4  # 5 in any case
    # 40 instead of 41 blocks do not pay 40 allocations.
    assert owners(*[Lifetime(smallest, 0, 8)] * 40, outputs=1) == ["arena"] * 40
    small = [Lifetime(smallest - 1, 0, 8)] * 4
    assert owners(*small, outputs=2) == ["arena"] * 4
    assert owners(Lifetime(largest, 0, 8), *small) == ["run", *["arena"] * 4]
