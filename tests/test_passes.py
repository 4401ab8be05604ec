"""Passes: what they make is proved, computes the same, sends no more and holds no more."""

from __future__ import annotations

from collections.abc import Sequence as Several
from fractions import Fraction
from itertools import cycle
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from mutants import mutant
from partitioned_cases import READY_PLANS, planned_steps
from phase_programs import RIGHT as PHASED
from phase_programs import built
from step_cases import BATCH, POSITIONS, SMALL, as_planned, passed

from primepar.operators import lower_step
from primepar.partition import parse_sequence
from primepar.passes import PASSES, apply
from primepar.passes.alive import peaks
from primepar.plan import Plan, ready_plan
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.reference.stand_in import PRIME
from primepar.schedule import Program, lower
from primepar.schedule.operators import Linear
from primepar.schedule.program import Compute
from primepar.verify import verify_program
from primepar.verify.explorer.explore import explore

SEQUENCES = ("", "K", "N", "M", "Ks", "Ns", "P2x2", "S2x2", "K,N", "M,Ks", "Ks,M", "Ks,N", "K,P2x2")
EACH = list(zip(READY_PLANS, cycle(SMALL), strict=False))
"""Every ready plan once and every family several times."""


def before(name: str, ranks: int, family: str) -> Program:
    return lower_step(ready_plan(name, SMALL[family], ranks), BATCH, POSITIONS, passes=())


class Ran(NamedTuple):
    """What `final` lists, by stand-ins in integers, and the elements that every rank sent."""

    ends: list[dict[str, list[int]]]
    sent: list[Fraction]


def ran(program: Program, given: Program) -> Ran:
    """A run from the memory that `given` starts with."""
    run = emulate(program, memories(given))
    ends = [
        {name: np.mod(held[name].array, PRIME).tolist() for name in own}
        for own, held in zip(program.final or (), run.blocks, strict=True)
    ]
    return Ran(ends, run.sent)


def assert_same(old: Program, new: Program) -> None:
    """The same numbers end at the same places, and the same number of elements is sent."""
    assert verify_program(new).verdict == "proved"
    assert ran(new, old) == ran(old, old)
    assert (new.initial, new.final) == (old.initial, old.final)


# All plans


@pytest.mark.parametrize(("planned", "family"), EACH)
def test_a_step_is_the_same_after_each_pass(planned: tuple[str, int], family: str) -> None:
    program = before(*planned, family)
    first, result, held = program, ran(program, program), peaks(program)
    for name in PASSES:
        program = apply(program, [name])
        assert ran(program, first) == result, name
        assert apply(program, [name]) == program, name
        if name != "merge-products":
            assert all(map(int.__le__, peaks(program), held)), name
        held = peaks(program)
    assert program == passed(*planned, family)
    assert verify_program(program).verdict == "proved"


@pytest.mark.parametrize(("name", "ranks"), READY_PLANS)
@pytest.mark.parametrize("family", SMALL)
def test_a_step_after_all_passes_is_proved(family: str, name: str, ranks: int) -> None:
    program = passed(name, ranks, family)
    assert verify_program(program).verdict == "proved"
    planned = as_planned(ready_plan(name, SMALL[family], ranks), BATCH, POSITIONS)
    assert all(map(int.__le__, peaks(program), peaks(planned)))


@settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
@given(planned_steps())
def test_under_any_plan_a_step_is_the_same(planned: tuple[Plan, int, int]) -> None:
    assert_same(lower_step(*planned, passes=()), lower_step(*planned))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["megatron-sp", "M2,megatron-sp", "3d"])
def test_no_rank_multiplies_more_often_than_phases_follow_one_another(
    name: str, family: str
) -> None:
    """As the executor did that merged products itself: what comes one after another is one."""
    for nodes in passed(name, 8, family).programs:
        phases = [node.phase for node in nodes if isinstance(node, Compute)]
        linear = [each for each in phases if each and each.endswith(("forward", "gradient"))]
        assert len(set(linear)) == len(linear)


# Programs of one operator


@pytest.mark.parametrize("text", SEQUENCES)
def test_a_program_of_one_operator_is_the_same(text: str) -> None:
    sequence = parse_sequence(text)
    program = lower(sequence, Linear.smallest(sequence.grid))
    for name in PASSES:
        old, program = program, apply(program, [name])
        assert_same(old, program)
        assert apply(program, [name]) == program
    assert explore(program).failed == frozenset()


@pytest.mark.parametrize(("text", "products"), [("Ks", 3), ("Ns", 3), ("M,Ks", 3)])
def test_gathered_slices_are_multiplied_at_once(text: str, products: int) -> None:
    sequence = parse_sequence(text)
    program = apply(lower(sequence, Linear.smallest(sequence.grid)))
    counts = [sum(isinstance(node, Compute) for node in own) for own in program.programs]
    assert counts == [products] * program.ranks


@pytest.mark.parametrize("text", SEQUENCES)
def test_an_operator_without_a_shape_keeps_its_products(text: str) -> None:
    program = lower(parse_sequence(text))
    assert apply(program, ["merge-products", "merge-collectives"]) is program
    assert_same(program, apply(program))


@pytest.mark.parametrize("name", PHASED)
def test_programs_with_phases_of_their_own_are_the_same(name: str) -> None:
    program = built(PHASED[name]())
    assert_same(program, apply(program))


# Whatever a program is


def test_a_pass_makes_nothing_wrong_right_and_nothing_right_wrong() -> None:
    """Of 600 generated programs, right and wrong ones."""
    right = 0
    for seed in range(600):
        old = mutant(seed)
        verdict = verify_program(old).verdict
        right += verdict == "proved"
        if verdict == "proved":
            report = verify_program(apply(old))
            assert (seed, report.verdict) == (seed, "proved")
    assert right > 100


def test_a_program_of_messages_alone_keeps_its_list() -> None:
    nodes: list[list[dict[str, object]]] = [
        [{"op": "isend", "peer": 1, "block": "x", "request": "a"}, {"op": "wait", "request": "a"}],
        [{"op": "irecv", "peer": 0, "block": "x", "request": "a"}, {"op": "wait", "request": "a"}],
    ]
    fields = {"format": "primepar-program", "version": 1, "ranks": 2, "programs": nodes}
    program = msgspec.convert(fields, Program)
    assert apply(program) is program
    assert apply(program, []) is program


def test_passes_are_applied_in_their_order_whichever_way_they_are_named() -> None:
    program = before("megatron-sp", 4, "gpt2")
    names: Several[str] = tuple(PASSES)
    assert apply(program, names[::-1]) == apply(program)
