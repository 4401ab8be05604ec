"""What ranks really do is what was proved; anything else is named by rank and instruction."""

from __future__ import annotations

from collections.abc import Iterator

import conform_cases
import pytest
import torch.distributed as dist
from conform_cases import CHANGES, RANKS
from distributed_ranks import on_ranks
from partitioned_cases import ON_FOUR
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_ready_plan_does_what_was_proved_in_as_much_memory(family: str) -> None:
    """The memory of all blocks, each piece once, is at most what the program says: 0 off."""
    for found in on_ranks(RANKS, conform_cases.conforms, list(ON_FOUR), family):
        for name, (wrong, measured, told) in found.items():
            assert (name, wrong) == (name, None)
            assert (name, measured) == (name, told)


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """Rank 0 of a world whose other ranks are not there: torch answers for them at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["compute", "isend", "irecv", "wait", "all_reduce", "free"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_instruction_that_is_changed_is_named(change: str, kind: str) -> None:
    at, texts, said = conform_cases.changed("primepar", "llama", change, kind)
    place = at + 1 if change == "doubled" else at
    assert said.startswith(f"rank 0, instruction {place}: expected {texts[place]}, as proved, got ")
    assert said.endswith(": the executor does not run the list that was proved")


@pytest.mark.usefixtures("alone")
def test_another_program_is_named() -> None:
    said = conform_cases.another("primepar", "data", "llama")
    assert said.startswith("rank 0, instruction 0: expected ")
