"""What every pass promises, of generated programs and of training steps under all presets.

What it makes is proved, computes the same, and sends no more; most of them hold no more. In
the long profile (`HYPOTHESIS_PROFILE=ci`) of 500 programs each.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, product
from typing import NamedTuple

import pytest
from drawn_programs import drawn
from hypothesis import HealthCheck, given, settings
from lowered_steps import lower_step
from msgspec.structs import replace
from mutants import mutant
from oracle.explore import explore
from partitioned_cases import PRESET_MESHES, planned_steps
from pass_cases import assert_same, drawn_and_ran, raises_no_peak, ran
from phase_programs import RIGHT, built
from profiles import IS_LONG, draws, few
from step_cases import BATCH, POSITIONS, SMALL, as_planned, passed

from primepar import check
from primepar.errors import ProgramError
from primepar.partition import parse_sequence
from primepar.passes import PASSES, apply, chunk_transfers
from primepar.passes.liveness import peaks
from primepar.passes.offload import least_limit, offload
from primepar.passes.scatter_sums import scatter_sums
from primepar.plan import Plan, preset_plan
from primepar.schedule import Program, lower
from primepar.schedule.operators import Linear
from primepar.verify import verify_program

PROGRAMS = 500 if IS_LONG else 40
SEQUENCES = ("", "K", "N", "M", "Ks", "Ns", "P2x2", "S2x2", "K,N", "M,Ks", "Ks,M", "Ks,N", "K,P2x2")
EACH = list(zip(PRESET_MESHES, cycle(SMALL), strict=False))[:: 1 if IS_LONG else 7]
"""Every preset plan once and every family several times; in the short profile every seventh."""


class Promise(NamedTuple):
    run: Callable[[Program], Program]
    keeps_peak: bool = True
    keeps_sent: bool = True
    """Whether as much is sent as before, to the last element; else no more."""
    is_final: bool = True
    """Whether a second run changes nothing."""


PROMISES = {
    "free-early": Promise(PASSES["free-early"]),
    "merge-products": Promise(PASSES["merge-products"], keeps_peak=False),
    "merge-collectives": Promise(PASSES["merge-collectives"], keeps_peak=False),
    "coalesce-reductions": Promise(PASSES["coalesce-reductions"]),
    "make-late": Promise(PASSES["make-late"]),
    "needed-first": Promise(PASSES["needed-first"], is_final=False),
    "partial-sums": Promise(PASSES["partial-sums"]),
    "overlap": Promise(PASSES["overlap"]),
    "scatter-sums": Promise(scatter_sums, keeps_peak=False, keeps_sent=False),
    "one chunk": Promise(lambda program: chunk_transfers(program, 1), keeps_peak=False),
    "three chunks": Promise(
        lambda program: chunk_transfers(program, 3), keeps_peak=False, is_final=False
    ),
    "all": Promise(
        lambda program: apply(program, tuple(PASSES), 2), keeps_peak=False, is_final=False
    ),
}
"""A merged product holds all of its operands at once, and so does a merged collective."""


@pytest.mark.parametrize("name", PROMISES)
def test_a_pass_keeps_its_promise(name: str) -> None:
    promise, changes = PROMISES[name], 0
    for seed in range(PROGRAMS):
        program, before = drawn_and_ran(seed)
        made = promise.run(program)
        if made.programs == program.programs:
            continue
        changes += 1
        after = ran(made, program)
        assert verify_program(made).verdict == "proved", seed
        assert after.ends == before.ends, seed
        assert (made.initial, made.final) == (program.initial, program.final), seed
        assert all(now <= was for now, was in zip(after.sent, before.sent, strict=True)), seed
        assert not promise.keeps_sent or after.sent == before.sent, seed
        assert not promise.keeps_peak or raises_no_peak(program, made), seed
        assert not promise.is_final or promise.run(made) == made, seed
    assert changes > PROGRAMS // 50


def test_offload_keeps_any_limit_from_the_least_one_on() -> None:
    moves = 0
    for seed, share in zip(range(PROGRAMS), cycle((0, 0.5)), strict=False):
        program, _ = drawn_and_ran(seed)
        least = least_limit(program)
        limit = least + round(share * max(0, max(peaks(program)) - least))
        made = offload(program, limit)
        assert made.memory is not None
        assert made.memory.device == limit >= max(peaks(made)), seed
        assert verify_program(made).verdict == "proved", seed
        assert check(made).equal, seed
        moves += made.programs != program.programs
    assert moves > PROGRAMS // 50


# Training steps


@pytest.mark.parametrize(("planned", "family"), EACH)
def test_a_step_is_the_same_after_each_pass(planned: tuple[str, int], family: str) -> None:
    name, ranks = planned
    program = lower_step(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS, passes=())
    first, result = program, ran(program, program)
    for name in PASSES:
        after = apply(program, [name])
        assert after == program or apply(after, [name]) == after, name
        assert name == "merge-products" or raises_no_peak(program, after), name
        program = after
        assert not IS_LONG or ran(program, first) == result, name
    assert ran(program, first) == result
    assert program == passed(*planned, family)  # which is proved below


@few
@pytest.mark.parametrize(("mesh", "family"), list(product(PRESET_MESHES, SMALL)))
def test_a_step_after_all_passes_is_proved(mesh: tuple[str, int], family: str) -> None:
    name, ranks = mesh
    program = passed(name, ranks, family)
    assert verify_program(program).verdict == "proved"
    planned = as_planned(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)
    assert raises_no_peak(planned, program)


@settings(max_examples=20 if IS_LONG else 1, suppress_health_check=list(HealthCheck), deadline=None)
@given(planned_steps())
def test_under_any_plan_a_step_is_the_same(planned: tuple[Plan, int, int]) -> None:
    assert_same(lower_step(*planned, passes=()), lower_step(*planned))


# Programs of one operator, and others


@few
@pytest.mark.parametrize("text", SEQUENCES)
def test_a_program_of_one_operator_is_the_same(text: str) -> None:
    sequence = parse_sequence(text)
    program = lower(sequence, Linear.smallest(sequence.grid))
    for name in PASSES:
        old, program = program, apply(program, [name])
        assert_same(old, program)
        assert apply(program, [name]) == program
    assert explore(program).failed == frozenset()
    unsized = lower(sequence)
    assert apply(unsized, ["merge-products", "merge-collectives"]) is unsized
    assert_same(unsized, apply(unsized))


@pytest.mark.parametrize("name", RIGHT)
def test_programs_with_phases_of_their_own_are_the_same(name: str) -> None:
    program = built(RIGHT[name]())
    assert_same(program, apply(program))


def test_nothing_right_becomes_wrong() -> None:
    """Of programs that were changed at random: some are right, and wrong ones raise nothing."""
    right = 0
    for seed in range(draws(200)):
        made = apply(old := mutant(seed), tuple(PASSES), 2)
        if verify_program(old).verdict == "proved":
            right += 1
            assert (seed, verify_program(made).verdict) == (seed, "proved")
    assert right > draws(200) // 8


def test_a_program_of_messages_alone_keeps_its_list() -> None:
    sent = {"op": "isend", "peer": 1, "block": "x", "request": "a"}
    got = {"op": "irecv", "peer": 0, "block": "x", "request": "a"}
    wait = {"op": "wait", "request": "a"}
    fields = {"format": "primepar-program", "version": 1, "ranks": 2}
    program = built({**fields, "programs": [[sent, wait], [got, wait]]})
    assert apply(program) is program
    assert apply(program, []) is program


def test_without_final_what_may_be_needed_at_the_end_is_kept() -> None:
    right = 0
    for seed in range(PROGRAMS):
        program = replace(drawn(seed), final=None)
        if verify_program(program).verdict == "proved":
            right += 1
            for name, promise in PROMISES.items():
                made = promise.run(program)
                assert made == program or verify_program(made).verdict == "proved", (seed, name)
    assert right > PROGRAMS // 10


# How passes are named


def test_passes_are_applied_in_their_order_whichever_way_they_are_named() -> None:
    program, _ = drawn_and_ran(0)
    assert apply(program, tuple(PASSES)[::-1]) == apply(program) != program


def test_a_pass_that_there_is_not_is_refused() -> None:
    with pytest.raises(ProgramError) as error:
        apply(drawn_and_ran(0)[0], ["overlap", "inline"])
    assert str(error.value) == (
        "passes: expected names out of free-early, merge-products, merge-collectives, "
        "coalesce-reductions, make-late, needed-first, partial-sums, overlap, got 'inline'"
    )
