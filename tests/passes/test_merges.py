"""Passes that make one of several: products, collectives, all-reduces of small sums."""

from __future__ import annotations

from dataclasses import replace as with_fields
from importlib import import_module

import pytest
from msgspec.structs import replace
from pass_cases import READ, assert_refused, assert_same, changed, count, reductions, refuted, step
from phase_programs import Json, built, compute
from phase_programs import program as program_of
from profiles import few
from step_cases import passed

from primepar.partition import parse_sequence
from primepar.passes import PASSES, apply, coalesce_reductions, merge_collectives, merge_products
from primepar.passes.block_uses import RankList
from primepar.passes.merge_products import _Group
from primepar.schedule import Program, lower
from primepar.schedule.operators import Linear
from primepar.schedule.program import AllReduce, Collective, Compute, Cut, Instruction, Join
from primepar.verify import verify_program

coalescing = import_module("primepar.passes.coalesce_reductions")

# Products


@few
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["megatron-sp", "M2,megatron-sp", "3d"])
def test_no_rank_multiplies_more_often_than_phases_follow_one_another(
    name: str, family: str
) -> None:
    for nodes in passed(name, 8, family).programs:
        phases = [str(node.phase) for node in nodes if isinstance(node, Compute)]
        linear = [phase for phase in phases if phase.endswith(("forward", "gradient"))]
        assert len(set(linear)) == len(linear)


@pytest.mark.parametrize("text", ["Ks", "Ns", "M,Ks"])
def test_gathered_slices_are_multiplied_at_once(text: str) -> None:
    sequence = parse_sequence(text)
    program = apply(lower(sequence, Linear.smallest(sequence.grid)))
    for nodes in program.programs:
        phases = [node.phase for node in nodes if isinstance(node, Compute) and node.phase]
        assert sorted(phases) == ["backward", "forward", "gradient"]


@pytest.mark.parametrize("name", ["summa", "tesseract"])
def test_products_merged_across_a_use_are_refuted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = apply(step(name, 4, "gpt2", *PASSES), ["free-early"])
    assert merge_products(given) is given
    monkeypatch.setattr(RankList, "is_waiting", lambda *args: False)
    monkeypatch.setattr(_Group, "_is_still", lambda *args: True)
    assert_refused(merge_products(given), given, "placement", "alignment", "completion", "races")


# Collectives


def sums(between: list[Json], posted: bool = False) -> Program:
    """Each of two ranks has a part of the sums x[0] and x[1]; `between` the two all-reduces."""
    phases = {
        "f": {"reads": ["a[M,N]"], "writes": "x[M]"},
        "g": {"reads": ["x[M]"], "writes": "y[M]"},
    }
    cut = {"cuts": [[0, 2, 4]]}
    tensors = {"a": {"cuts": [[0, 2, 4], [0, 2, 4]]}, "x": cut, "y": cut}
    lists: list[list[Json]] = []
    for rank in (0, 1):
        computes = [compute("f", [f"a[{m},{rank}]"], f"x[{m}]", M=m, N=rank) for m in (0, 1)]
        calls: list[Json] = [
            {"op": "all_reduce", "group": [0, 1], "block": block,
             **({"request": block} if posted else {})}
            for block in ("x[0]", "x[1]")
        ]  # fmt: skip
        waits: list[Json] = [{"op": "wait", "request": block} for block in ("x[0]", "x[1]")]
        used = compute("g", ["x[0]"], "y[0]", M=0, R=rank)
        inner = [used if node == USE else node for node in between]
        nodes = [*computes, calls[0], *inner, calls[1], *waits[: 2 * posted]]
        lists.append([*nodes, *[used] * (USE not in between)])
    initial = [[f"a[{m},{rank}]" for m in (0, 1)] for rank in (0, 1)]
    grid = {"f": {"M": 2, "N": 2}, "g": {"M": 1, "R": 2}}
    final = [["x[0]", "x[1]", "y[0]"]] * 2
    return built(program_of(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                            final=final))  # fmt: skip


USE: Json = {"op": "use"}
"""A product that reads x[0]; it comes last if it is not between the all-reduces."""


@pytest.mark.parametrize("posted", [False, True])
def test_all_reduces_of_adjacent_blocks_are_one(posted: bool) -> None:
    given = sums([], posted)
    made = merge_collectives(given)
    assert_same(given, made)
    for nodes in made.programs:
        parts, whole = ("x[0]", "x[1]"), "x.joined[0]"
        assert Join(parts, whole, in_place=True) in nodes
        assert Cut(whole, parts, in_place=True) in nodes
        assert [node.block for node in nodes if isinstance(node, AllReduce)] == [whole]
    assert merge_collectives(made) == made


@pytest.mark.parametrize(
    "between",
    [
        [{"op": "barrier", "group": [0, 1]}],
        [{"op": "evict", "block": "x[0]"}, {"op": "fetch", "block": "x[0]"}],
        [{"op": "compute", "reads": ["x[0]"], "accumulates": "z"}],
        [USE],
    ],
)
def test_all_reduces_with_something_between_them_stay(between: list[Json]) -> None:
    given = sums(between)
    assert merge_collectives(given) is given


def test_collectives_merged_across_a_use_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = sums([USE])
    assert refuted(given) == set()
    monkeypatch.setattr(RankList, "between", lambda *args: ())
    assert_refused(merge_collectives(given), given, "completion")


# Sums of few elements


def test_two_sums_of_unlike_sizes_are_one_call() -> None:
    given = reductions([], {})
    made = coalesce_reductions(given)
    assert [node.reduced for node in made.programs[0] if isinstance(node, AllReduce)] == [
        ("u[0]", "v[0]")
    ]
    assert_same(given, made)
    assert coalesce_reductions(made) == made


@pytest.mark.parametrize(
    ("between", "calls"),
    [
        ([READ], {}),
        ([], {"u": {"scale": "2"}}),
        ([], {"u": {"request": "early"}}),
        ([], {"u": {"communicator": "other"}}),
    ],
)
def test_calls_that_differ_or_are_needed_before_stay(
    between: list[Json], calls: dict[str, Json]
) -> None:
    given = reductions(between, calls)
    assert coalesce_reductions(given) is given


def test_a_call_that_is_needed_early_stays_between_two_that_are_one() -> None:
    given = reductions([READ], {}, names="uvw", sizes="345")
    made = coalesce_reductions(given)
    assert [node.reduced for node in made.programs[0] if isinstance(node, AllReduce)] == [
        ("u[0]",), ("v[0]", "w[0]"),
    ]  # fmt: skip
    assert_same(given, made)


def test_a_bucket_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    given = reductions([], {})
    for most, calls in ((7, 2), (8, 1)):
        monkeypatch.setattr(coalescing, "LARGEST_BUCKET", most)
        assert count(coalesce_reductions(given), AllReduce) == calls


def test_a_sum_that_is_delayed_past_its_use_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = reductions([READ], {})
    assert refuted(given) == set()
    monkeypatch.setattr(coalescing._Small, "lasts_until", lambda *_: True)
    assert refuted(coalesce_reductions(given))


def test_calls_that_differ_are_refuted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is scaled, as its phase expects, and the other is not."""
    made = reductions([], {"v": {"scale": "2"}})
    assert made.phases is not None
    given = replace(made, phases={**made.phases, "v": replace(made.phases["v"], scale="2")})
    assert refuted(given) == set()
    assert coalesce_reductions(given) is given
    calls = coalescing._small_all_reduces
    monkeypatch.setattr(
        coalescing, "_small_all_reduces",
        lambda *args: [with_fields(call, kind=()) for call in calls(*args)],
    )  # fmt: skip
    assert refuted(coalesce_reductions(given)) == {"completion"}


def test_a_member_that_lists_fewer_blocks_is_named() -> None:
    def one_less(rank: int, node: Instruction) -> list[Instruction]:
        return [replace(node, also=()) if rank and isinstance(node, AllReduce) else node]

    made = changed(coalesce_reductions(reductions([], {})), one_less)
    fault = verify_program(made)["deadlock-freedom"]
    assert str(fault.counterexample) == (
        "rank 1, instruction 2 (all_reduce u[0] over 0,1): expected 2 blocks as in rank 0, "
        "instruction 2 (all_reduce u[0] v[0] over 0,1), got 1: list the same on all of the "
        "group's ranks"
    )


def test_a_block_that_is_named_twice_in_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected every name in block and also once, got x 2 "
                       r"times: reduce it once$"):  # fmt: skip
        AllReduce((0, 1), block="x", also=("y", "x"))


@pytest.mark.parametrize(
    ("name", "family", "calls"), [("data", "gpt2", 4), ("megatron", "gpt2", 9)]
)
def test_a_step_has_few_collectives(name: str, family: str, calls: int) -> None:
    assert count(passed(name, 4, family), Collective) == calls
