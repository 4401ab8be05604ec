"""The pass that puts transfers into programs: proved, exact, within the limit; mutants refuted."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from agreement import disagreement
from msgspec.structs import replace
from offload_cases import SMALL, limited, random_sizes, resident, spoilt
from oracle.explore import explore

from primepar import check
from primepar.certify.program import certify_program
from primepar.distributed.modules.gpt import uniform_plan
from primepar.errors import EmulationError, MemoryLimitError, PrimeParError, ProgramError
from primepar.operators import StepOptions, lower_step
from primepar.operators.optimizers import Optimizer
from primepar.partition import parse_sequence
from primepar.partition.patrickstar import PatrickStar
from primepar.passes.block_uses import Rank, followed
from primepar.passes.liveness import peaks
from primepar.passes.offload import (
    furthest_next_use,
    least_limit,
    least_recently_used,
    moved_elements,
    offload,
)
from primepar.passes.offload.moments import Moments
from primepar.passes.offload.residency import Residency
from primepar.passes.offload.states import largest_state, state_chunks
from primepar.schedule.program import Evict, Fetch, Program
from primepar.verify import verify_program
from primepar.verify.certificate.program import certificate

SEQUENCES = ("", "M2", "K2", "N2", "P2x2")


def refuted(program: Program) -> set[str]:
    return {known.name for known in verify_program(program).properties if known.verdict != "proved"}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_step_under_the_least_limit_is_proved_and_keeps_it(sequence: str) -> None:
    program, limit = limited(sequence), least_limit(resident(sequence))
    assert refuted(program) == set()
    assert max(peaks(program)) == limit < min(peaks(resident(sequence)))
    assert program.memory is not None
    assert program.memory.device == limit
    assert all(len(set(blocks)) > 10 for blocks in program.host_initial or ())
    assert check(program).equal


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
    for node, used in followed(program.programs[0], Rank(0)):
        if isinstance(node, Evict | Fetch):
            live, host = live ^ {node.block}, host ^ {node.block}
            continue
        live = (live - set(used.gone)) | set(used.made)
        split = {chunks[0].get(name) for name in live} & {chunks[0].get(name) for name in host}
        assert split <= {None}  # no chunk has blocks in both memories while an instruction runs
    assert refuted(program) == set()


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
    for _ in range(200):
        method = random_sizes(random)
        program = method.program()
        assert refuted(program) == set(), method
        assert check(program).equal, method
        assert program.memory is not None
        assert max(peaks(program)) <= (program.memory.device or 0)
        moving += any(isinstance(node, Evict) for node in program.programs[0])
    assert moving == 200  # all states begin and end on the host


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


MUTATED = {
    "patrickstar": PatrickStar(layers=3, hidden=1, rows=1, chunk=2).program(),
    "step": limited(""),
}


@pytest.mark.parametrize("name", MUTATED)
def test_spoilt_transfers_are_refuted_by_every_reader(name: str) -> None:
    """The proof, the explorer, the emulator; and the certificate of the refutation holds."""
    ways = Counter[str]()
    mutants = list(spoilt(MUTATED[name]))
    if name == "step":  # all of them take a minute
        mutants = [*mutants[::6], mutants[-1]]
    for place, (way, program, fails) in enumerate(mutants):
        report = verify_program(program)
        assert report.verdict == "refuted", way
        names = {known.name for known in report.properties if known.verdict == "refuted"}
        assert names & fails, (way, names)
        ways[way] += 1
        if place % 7 == 0 and name == "patrickstar":
            assert disagreement(report, explore(program)) == "", way
        assert not _runs(program), way
        if place % 7 == 0 and way != "limit of one element less":
            given = certificate(program, report)
            certify_program(given, program)
            with pytest.raises(PrimeParError):
                certify_program(replace(given, refuted=()), program)
    assert ways.keys() == {
        "missing fetch", "early eviction", "evicted block lost", "limit of one element less",
    }  # fmt: skip
    assert refuted(MUTATED[name]) == set()


def _runs(program: Program) -> bool:
    try:
        return check(program).equal
    except EmulationError:
        return False


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
