"""Kernels that write into the memory of an operand change no number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from conform_cases import RANKS, blocks_of, executor_of
from msgspec.structs import replace
from profiles import few
from step_cases import BATCH, POSITIONS, SMALL, passed
from torch.testing._internal.distributed.fake_pg import FakeStore

from primepar.distributed.kernels import IN_PLACE
from primepar.distributed.runtime import computes
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, lower_step
from primepar.passes.block_uses import Rank, RankList
from primepar.plan import preset_plan
from primepar.schedule.effects import initial_blocks
from primepar.schedule.program import Compute, Free, Instruction, ISend, Program, Wait

Taken = list[tuple[int, str]]
"""Positions of computes, each with the block whose memory its result has."""


@pytest.fixture
def alone() -> Iterator[None]:
    """Rank 0 of a world whose other ranks are not there: torch answers for them at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


@contextmanager
def apart() -> Iterator[None]:
    """Every kernel writes into memory of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computes, "IN_PLACE", {})
        yield


def results(program: Program, family: str, draw: Draw | None) -> dict[str, torch.Tensor]:
    executor = executor_of(program, family, None, "P1x1")
    made = executor(blocks_of(executor), StepInputs(draw, 1e-3, 1))
    kept = [
        slot for buffer in executor._buffers for slot, _ in buffer._slots if slot[0] is not None
    ]
    assert kept == [], "all memory is given up, or is the caller's"
    return made


def differing(program: Program, family: str, draw: Draw | None) -> list[str]:
    """Blocks at the end that are not equal to those of kernels with memory of their own."""
    got = results(program, family, draw)
    with apart():
        expected = results(program, family, draw)
    assert got.keys() == expected.keys()
    return [name for name, block in expected.items() if not torch.equal(got[name], block)]


def taken_in(program: Program, family: str = "gpt2", sequence: str = "P2x2") -> Taken:
    """What takes over memory on the first rank."""
    taken: Taken = []
    take_over = MemoryPlaces.take_over

    def noted(places: MemoryPlaces, name: str, old: str) -> list[object]:
        taken.append((places.place, old))
        return list(take_over(places, name, old))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryPlaces, "take_over", noted)
        executor_of(program, family, None, sequence)
    return taken


@few
@pytest.mark.parametrize("draw", [None, Draw(0, 1)], ids=["plain", "dropout"])
@pytest.mark.parametrize("family", SMALL)
def test_a_step_is_the_same_in_place(family: str, draw: Draw | None) -> None:
    assert differing(passed("data", 1, family), family, draw) == []


def test_logits_are_the_same_in_place() -> None:
    program = lower_step(preset_plan("data", SMALL["gpt2"], 1), BATCH, POSITIONS, "logits")
    assert differing(program, "gpt2", None) == []
    kernels = kernels_of(program, taken_in(program, sequence="P1x1"))
    assert {"activation.forward", "norm.forward", "bias.forward"} <= kernels


def kernels_of(program: Program, taken: Taken) -> set[str]:
    nodes, phases = program.programs[0], program.phases or {}
    named = [nodes[place] for place, _ in taken]
    return {str(phases[str(node.phase)].kernel) for node in named if isinstance(node, Compute)}


@pytest.mark.parametrize("wrong", [("add.forward", 0), ("embedding.forward", 0)], ids=str)
def test_a_wrong_operand_changes_numbers(wrong: tuple[str, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computes, "IN_PLACE", {**IN_PLACE, wrong[0]: wrong[1]})
        got = results(passed("data", 1, "gpt2"), "gpt2", Draw(0, 1))
    with apart():
        expected = results(passed("data", 1, "gpt2"), "gpt2", Draw(0, 1))
    assert any(not torch.equal(got[name], block) for name, block in expected.items())


@pytest.mark.usefixtures("alone")
def test_nothing_needs_what_is_overwritten() -> None:
    kernels: set[str] = set()
    for plan in ("megatron-sp", "primepar"):
        program = passed(plan, RANKS, "gpt2")
        nodes, taken = program.programs[0], taken_in(program)
        line = RankList(nodes, Rank(0), initial_blocks(program)[0])
        kernels |= kernels_of(program, taken)
        for place, block in taken:
            after = line.after(block, place)
            assert after is not None
            assert type(nodes[after]) is Free
            assert not line.is_in_flight(block, place)
    assert {"attention.backward", "activation.backward", "norm.backward", "add.forward"} <= kernels


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("use", ["in flight", "read later"])
def test_memory_that_is_needed_is_not_taken(use: str) -> None:
    """A block is sent, or read again, while the result that would have its memory is made."""
    program = passed("data", RANKS, "gpt2")
    nodes, (place, block) = program.programs[0], taken_in(program)[0]
    free = nodes.index(Free(block), place)
    before: list[Instruction] = [ISend(1, block, request="sent")]
    after: list[Instruction] = [Wait("sent")]
    if use == "read later":
        before, after = [], [Compute((block,), f"{block}'"), Free(f"{block}'")]
    changed = (*nodes[:place], *before, *nodes[place:free], *after, *nodes[free:])
    altered = replace(program, programs=(changed, *program.programs[1:]))
    taken = taken_in(altered)
    assert block not in [old for _, old in taken]
    assert len(taken) == len(taken_in(program)) - 1
