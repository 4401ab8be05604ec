"""What ranks really do is what was proved; anything else is named by rank and instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import conform_cases
import pytest
import torch.distributed as dist
from conform_cases import CHANGES, RANKS
from distributed_ranks import on_ranks
from msgspec.structs import replace
from partitioned_cases import ON_FOUR
from profiles import IS_LONG, long
from step_cases import lowered
from torch.testing._internal.distributed.fake_pg import FakeStore

from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.run import simulate
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program
from primepar.schedule.signature import Bound
from primepar.verify import verify_program


def proved_with(program: Program, peak: int, sent: Sequence[Fraction]) -> dict[str, str]:
    """Memory and traffic of a program that claims to hold and send so much."""
    claims = tuple(f"{elements.numerator}/{elements.denominator}" for elements in sent)
    claiming = replace(program, memory=Bound(peak), traffic=claims)
    report = verify_program(claiming)
    return {name: report[name].verdict for name in ("memory", "traffic")}


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=long)])
def test_proof_emulator_simulator_and_executor_have_the_same_numbers(family: str) -> None:
    """Of preset plans: bytes sent, peak memory and instructions; nothing is off."""
    names = list(ON_FOUR) if IS_LONG else ["megatron-sp", "summa", "primepar"]
    ranks = on_ranks(RANKS, conform_cases.conforms, names, family)
    for name in names:
        program, executed = lowered(name, RANKS, family), [by_name[name] for by_name in ranks]
        assert [counts.wrong for counts in executed] == [None] * RANKS
        emulated = emulate(program, memories(program))
        simulated = simulate(program, load_cluster("h200-8"), "float32")
        sent, peak = [counts.sent for counts in executed], [counts.peak for counts in executed]
        assert sent == emulated.sent == [counts / 4 for counts in simulated.sent]
        assert peak == emulated.peak == [counts / 4 for counts in simulated.peak]
        assert [counts.instructions for counts in executed] == list(map(len, program.programs))
        both = {"memory": "proved", "traffic": "proved"}
        assert proved_with(program, max(peak), sent) == both
        less = [sent[0] - 1, *sent[1:]]
        assert proved_with(program, max(peak) - 1, less) == dict.fromkeys(both, "refuted")


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
    position, texts, message = conform_cases.changed("primepar", "llama", change, kind)
    place = position + 1 if change == "doubled" else position
    assert message.startswith(
        f"rank 0, instruction {place}: expected {texts[place]}, as proved, got "
    )
    assert message.endswith(": the executor does not run the list that was proved")


@pytest.mark.usefixtures("alone")
def test_another_program_is_named() -> None:
    message = conform_cases.another("primepar", "data", "llama")
    assert message.startswith("rank 0, instruction 0: expected ")
