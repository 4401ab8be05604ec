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
from lowered_steps import lower_step
from mutants import mutant
from oracle.explore import explore
from partitioned_cases import PRESET_MESHES, planned_steps
from phase_programs import RIGHT as PHASED
from phase_programs import Json, built
from phase_programs import program as program_of
from profiles import IS_LONG, pairs
from step_cases import BATCH, POSITIONS, SMALL, as_planned, passed

from primepar.errors import ProgramError
from primepar.partition import parse_sequence
from primepar.passes import PASSES, apply, free_early, make_late
from primepar.passes.liveness import peaks
from primepar.plan import Plan, preset_plan
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.reference.emulator.surrogate import PRIME
from primepar.schedule import Program, lower
from primepar.schedule.operators import Linear
from primepar.schedule.program import (
    AllReduce,
    Collective,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    Wait,
)
from primepar.schedule.program_uses import frees, uses, writes
from primepar.verify import verify_program

SEQUENCES = ("", "K", "N", "M", "Ks", "Ns", "P2x2", "S2x2", "K,N", "M,Ks", "Ks,M", "Ks,N", "K,P2x2")
EACH = list(zip(PRESET_MESHES, cycle(SMALL), strict=False))[:: 1 if IS_LONG else 2]
"""Every preset plan once and every family several times; in the short profile every second."""


def before(name: str, ranks: int, family: str) -> Program:
    return lower_step(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS, passes=())


class Ran(NamedTuple):
    """What `final` lists, by stand-ins in integers, and the elements that every rank sent."""

    ends: list[dict[str, list[int]]]
    sent: list[Fraction]


def ran(program: Program, given: Program) -> Ran:
    """A run from the memory that `given` starts with."""
    run = emulate(program, memories(given))
    ends = [
        {name: np.mod(held[name].array, PRIME).tolist() for name in names}
        for names, held in zip(program.final or (), run.blocks, strict=True)
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
        after = apply(program, [name])
        if after == program:
            continue
        program = after
        assert ran(program, first) == result, name
        assert apply(program, [name]) == program, name
        if name != "merge-products":
            assert all(map(int.__le__, peaks(program), held)), name
        held = peaks(program)
    assert program == passed(*planned, family)  # which is proved below


@pytest.mark.parametrize(("mesh", "family"), pairs(PRESET_MESHES, list(SMALL)))
def test_a_step_after_all_passes_is_proved(mesh: tuple[str, int], family: str) -> None:
    name, ranks = mesh
    program = passed(name, ranks, family)
    assert verify_program(program).verdict == "proved"
    planned = as_planned(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)
    assert all(map(int.__le__, peaks(program), peaks(planned)))


@settings(max_examples=5, suppress_health_check=list(HealthCheck), deadline=None)
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
        linear = [phase for phase in phases if phase and phase.endswith(("forward", "gradient"))]
        assert len(set(linear)) == len(linear)


# What each is for


def test_sums_of_gradients_hide_behind_the_rest_of_backward() -> None:
    nodes = passed("data", 4, "gpt2").programs[0]
    last = "blocks.0.qkv.weight.grad[0,0]"
    sums = [position for position, node in enumerate(nodes)
            if isinstance(node, AllReduce) and last in node.reduced]  # fmt: skip
    (post,) = sums
    call = nodes[post]
    assert isinstance(call, AllReduce)
    wait = nodes.index(Wait(str(call.request)))
    phases = [node.phase for node in nodes[post:wait] if isinstance(node, Compute)]
    assert "embedding.backward" in phases
    used = {block for node in nodes[post + 1 : wait] for block in touched(node)}
    assert used.isdisjoint(call.reduced)


def touched(node: Instruction) -> tuple[str, ...]:
    return (*uses(node, 0), *writes(node, 0), *frees(node))


@pytest.mark.parametrize(("name", "ranks"), PRESET_MESHES)
def test_the_order_in_which_ranks_post_stays(name: str, ranks: int) -> None:
    old = apply(before(name, ranks, "llama"), [name for name in PASSES if name != "overlap"])
    for rank, nodes in enumerate(apply(old, ["overlap"]).programs):
        kept = [[replaced(node) for node in list_ if not isinstance(node, Wait) and is_post(node)]
                for list_ in (old.programs[rank], nodes)]  # fmt: skip
        assert kept[0] == kept[1]


def is_post(node: Instruction) -> bool:
    return isinstance(node, ISend | IRecv | Collective)


def replaced(node: Instruction) -> Instruction:
    """A collective without its request, which it may get."""
    if isinstance(node, Collective):
        return msgspec.structs.replace(node, request=None)
    return node


def test_what_is_cut_and_not_needed_after_is_cut_in_place() -> None:
    cut = {"op": "cut", "block": "x[0]", "blocks": ["x.halves[0]", "x.halves[1]"]}
    join = {"op": "join", "blocks": ["x.halves[0]", "x.halves[1]"], "block": "x[0]"}
    tensors = {"x": {"cuts": [[0, 4]]}, "x.halves": {"of": "x", "cuts": [[0, 2, 4]]}}
    initial = [["x[0]"]]
    old = built(program_of([[cut, join]], tensors=tensors, initial=initial, final=initial))
    (nodes,) = free_early(old).programs
    assert [getattr(node, "in_place", None) for node in nodes] == [True, True]
    assert peaks(free_early(old)) == [4]
    kept = built(program_of([[cut]], tensors=tensors, initial=initial, final=initial))
    assert free_early(kept).programs[0] == (
        *kept.programs[0], Free("x.halves[0]"), Free("x.halves[1]"),
    )  # fmt: skip


def test_a_block_is_freed_after_its_last_use_or_its_wait() -> None:
    steps: list[Json] = [
        {"op": "compute", "reads": ["x"], "accumulates": "y"},
        {"op": "irecv", "peer": 0, "block": "z", "request": "r"},
        {"op": "compute", "reads": ["y"], "accumulates": "w"},
        {"op": "wait", "request": "r"},
        {"op": "free", "block": "x"},
    ]
    old = built(program_of([steps], initial=[["x"]], final=[["w"]]))
    first, post, second, wait, _ = old.programs[0]
    assert free_early(old).programs[0] == (
        first, Free("x"), post, second, Free("y"), wait, Free("z"),
    )  # fmt: skip


def test_a_block_is_made_after_the_frees_that_lower_the_peak() -> None:
    """The gradient of the activation I, then that of W, as lowered: I and dI are live together."""
    di: Json = {"op": "compute", "reads": ["dO", "W"], "accumulates": "dI"}
    dw: Json = {"op": "compute", "reads": ["I", "dO"], "accumulates": "dW"}
    used: Json = {"op": "compute", "reads": ["dI"], "accumulates": "dz"}
    frees: list[Json] = [{"op": "free", "block": name} for name in ("W", "I", "dO", "dI")]
    sizes = {"I": 4, "W": 2, "dO": 1, "dI": 4, "dW": 2, "dz": 4}
    tensors = {name: {"cuts": [[0, size]]} for name, size in sizes.items()}
    named = [
        {key: renamed(value) for key, value in node.items()}
        for node in (di, frees[0], dw, *frees[1:3], used, frees[3])
    ]
    final = [["dW[0]", "dz[0]"]]
    initial = [["I[0]", "W[0]", "dO[0]"]]
    old = built(program_of([named], tensors=tensors, initial=initial, final=final))
    new = make_late(old)
    assert [old.programs[0].index(node) for node in new.programs[0]] == [2, 3, 0, 1, 4, 5, 6]
    assert (peaks(old), peaks(new)) == ([11], [10])


def renamed(value: object) -> object:
    """Names as blocks of tensors of one dim."""
    if isinstance(value, list):
        return [renamed(name) for name in value]
    return value if value in ("compute", "free") else f"{value}[0]"


def test_a_free_that_is_wrong_stays() -> None:
    nodes: list[Json] = [{"op": "free", "block": "x"}, {"op": "free", "block": "x"}]
    old = built(program_of([nodes], initial=[["x"]]))
    assert free_early(old) is old


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
    counts = [
        sum(isinstance(node, Compute) and node.phase is not None for node in instructions)
        for instructions in program.programs
    ]
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


def test_a_pass_that_there_is_not_is_refused() -> None:
    program = before("data", 4, "llama")
    with pytest.raises(ProgramError) as error:
        apply(program, ["overlap", "inline"])
    assert str(error.value) == (
        "passes: expected names out of free-early, merge-products, merge-collectives, "
        "coalesce-reductions, make-late, needed-first, partial-sums, overlap, got 'inline'"
    )
