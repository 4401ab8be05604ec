"""Small all-reduces of one group become one call of several blocks; wrong calls are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import msgspec
import pytest
from oracle.explore import explore
from phase_programs import Json, built, compute, program
from step_cases import passed

from primepar.errors import EmulationError
from primepar.passes import coalesce_reductions
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Collective
from primepar.verify import verify_program

coalescing = import_module("primepar.passes.coalesce_reductions")
Spoil = Callable[[int, AllReduce], AllReduce]
GROUP = (0, 1)


def gradients(given: list[Json], **more: Json) -> Program:
    """Two ranks make parts of the sums u and v of unlike sizes, and then read both."""
    phases = {
        "f": {"reads": ["a[M]"], "writes": "u[0]"},
        "g": {"reads": ["a[M]"], "writes": "v[0]"},
        "h": {"reads": ["u[0]", "v[0]"], "writes": "y[0]"},
        "k": {"reads": ["u[0]"], "writes": "w[0]"},
    }
    tensors = {"a": {"cuts": [[0, 2, 4]]}, "u": {"cuts": [[0, 3]]}, "v": {"cuts": [[0, 5]]},
               "y": {"cuts": [[0, 1]]}, "w": {"cuts": [[0, 1]]}}  # fmt: skip
    lists: list[list[Json]] = []
    for rank in GROUP:
        between = [{**node, "sub_operator": {"R": rank}} if "phase" in node else node
                   for node in given]  # fmt: skip
        reduced = [
            {"op": "all_reduce", "group": list(GROUP), "block": block, **more.get(block[0], {})}
            for block in ("u[0]", "v[0]")
        ]
        lists.append(
            [
                compute("f", [f"a[{rank}]"], "u[0]", M=rank),
                reduced[0],
                *between,
                compute("g", [f"a[{rank}]"], "v[0]", M=rank),
                reduced[1],
                compute("h", ["u[0]", "v[0]"], "y[0]", R=rank),
            ]
        )
    grid = {"f": {"M": 2}, "g": {"M": 2}, "h": {"R": 2}} | ({"k": {"R": 2}} if USE in given else {})
    initial = [[f"a[{rank}]"] for rank in GROUP]
    return built(program(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                         final=[["y[0]"]] * 2))  # fmt: skip


def reductions(made: Program, rank: int = 0) -> list[AllReduce]:
    return [node for node in made.programs[rank] if isinstance(node, AllReduce)]


def test_two_sums_of_unlike_sizes_are_one_call() -> None:
    given = gradients([])
    made = coalesce_reductions(given)
    assert [node.reduced for node in reductions(made)] == [("u[0]", "v[0]")]
    assert verify_program(given).verdict == verify_program(made).verdict == "proved"
    runs = [emulate(program, memories(given)) for program in (given, made)]
    assert runs[0].sent == runs[1].sent == [8, 8]
    arrays = [{name: held.array.tolist() for name, held in run.blocks[0].items()} for run in runs]
    assert arrays[0] == arrays[1]
    assert coalesce_reductions(made) == made


USE: Json = {
    "op": "compute",
    "phase": "k",
    "sub_operator": {"R": 0},
    "reads": ["u[0]"],
    "accumulates": "w[0]",
}
"""A product that reads the finished sum u[0]."""
READ: Json = {"op": "compute", "reads": ["u[0]"], "accumulates": "z"}


@pytest.mark.parametrize(
    ("between", "more"),
    [
        ([READ], {}),
        ([], {"u": {"scale": "2"}}),
        ([], {"u": {"request": "early"}}),
        ([], {"u": {"communicator": "other"}}),
    ],
)
def test_calls_that_differ_or_are_needed_before_stay(
    between: list[Json], more: dict[str, Json]
) -> None:
    given = gradients(between, **more)
    assert coalesce_reductions(given) is given


def test_a_bucket_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "LARGEST_BUCKET", 7)
    given = gradients([])
    assert coalesce_reductions(given) is given
    monkeypatch.setattr(coalescing, "LARGEST_BUCKET", 8)
    assert len(reductions(coalesce_reductions(given))) == 1


def test_a_sum_that_is_delayed_past_its_use_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = gradients([USE])
    monkeypatch.setattr(coalescing._Call, "lasts_until", lambda *_: True)
    made = coalesce_reductions(given)
    assert made != given
    assert verify_program(made).verdict == "refuted"


def test_calls_that_differ_are_refuted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is scaled, as its phase expects, and the other is not."""
    made = gradients([], v={"scale": "2"})
    assert made.phases is not None
    double = msgspec.structs.replace(made.phases["g"], scale="2")
    given = msgspec.structs.replace(made, phases={**made.phases, "g": double})
    assert wrong(given) == set()
    assert coalesce_reductions(given) is given
    calls = coalescing._Known.all_reduces

    def all_alike(self: Any, by_rank: Any) -> list[Any]:
        return [replace(call, kind=()) for call in calls(self, by_rank)]

    monkeypatch.setattr(coalescing._Known, "all_reduces", all_alike)
    made = coalesce_reductions(given)
    assert made != given
    assert wrong(made) == {"completion"}


def test_blocks_in_an_order_of_each_rank_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    coalesced, turns = coalescing._coalesced, iter((False, True))

    def turned(line: Any, places: tuple[int, ...]) -> Any:
        edits = coalesced(line, places)
        (call,) = edits[places[-1]]
        return {**edits, places[-1]: [in_another_order(int(next(turns)), call)]}

    monkeypatch.setattr(coalescing, "_coalesced", turned)
    assert wrong(coalesce_reductions(gradients([]))) == {"alignment"}


def wrong(made: Program) -> set[str]:
    return {part.name for part in verify_program(made).properties if part.verdict == "refuted"}


def without_last(rank: int, node: AllReduce) -> AllReduce:
    return msgspec.structs.replace(node, also=node.also[:-1])


def without_last_on_one(rank: int, node: AllReduce) -> AllReduce:
    return without_last(rank, node) if rank else node


def in_another_order(rank: int, node: AllReduce) -> AllReduce:
    block, (other,) = node.block, node.also
    return msgspec.structs.replace(node, block=other, also=(block,)) if rank else node


def by_max(rank: int, node: AllReduce) -> AllReduce:
    return msgspec.structs.replace(node, reduction="max")


def twice_as_much(rank: int, node: AllReduce) -> AllReduce:
    return msgspec.structs.replace(node, scale="2")


def another_block(rank: int, node: AllReduce) -> AllReduce:
    return msgspec.structs.replace(node, also=(f"a[{rank}]",))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (without_last, "completion"),
        (without_last_on_one, "deadlock-freedom"),
        (in_another_order, "alignment"),
        (by_max, "completion"),
        (twice_as_much, "completion"),
        (another_block, "completion"),
    ],
)
def test_a_wrong_call_of_several_blocks_is_refuted_by_all_readers(spoil: Spoil, wrong: str) -> None:
    given = gradients([])
    made = coalesce_reductions(given)
    lists = [
        [spoil(rank, node) if isinstance(node, AllReduce) else node for node in nodes]
        for rank, nodes in enumerate(made.programs)
    ]
    broken = msgspec.structs.replace(made, programs=tuple(map(tuple, lists)))
    answer = {result.name: result.verdict for result in verify_program(broken).properties}
    assert answer[wrong] == "refuted", answer
    assert wrong in explore(broken).failed
    with pytest.raises(EmulationError):
        emulate(broken, memories(given))


def test_a_member_that_lists_fewer_blocks_is_named() -> None:
    made = coalesce_reductions(gradients([]))
    lists = [
        [without_last_on_one(rank, node) if isinstance(node, AllReduce) else node for node in nodes]
        for rank, nodes in enumerate(made.programs)
    ]
    broken = msgspec.structs.replace(made, programs=tuple(map(tuple, lists)))
    (fault,) = (
        result.counterexample
        for result in verify_program(broken).properties
        if result.name == "deadlock-freedom"
    )
    assert str(fault) == (
        "rank 1, instruction 2 (all_reduce u[0] over 0,1): expected 2 blocks as in rank 0, "
        "instruction 2 (all_reduce u[0] v[0] over 0,1), got 1: list the same on all of the "
        "group's ranks"
    )


def test_a_block_that_is_named_twice_in_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected every name in block and also once, got x 2 "
                       r"times: reduce it once$"):  # fmt: skip
        AllReduce(GROUP, block="x", also=("y", "x"))


@pytest.mark.parametrize(
    ("name", "family", "calls"),
    [("data", "gpt2", 4), ("megatron", "gpt2", 9)],
)
def test_a_step_has_few_collectives(name: str, family: str, calls: int) -> None:
    nodes = passed(name, 4, family).programs[0]
    assert len([node for node in nodes if isinstance(node, Collective)]) == calls
