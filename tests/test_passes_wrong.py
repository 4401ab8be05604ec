"""A pass that breaks a program is refuted by the proof and by the emulator: broken on purpose."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from phase_programs import Json, built, compute, program
from step_cases import lowered

from primepar.errors import EmulationError
from primepar.passes import apply, free_early, make_late, merge_collectives, merge_products, overlap
from primepar.passes.block_uses import RankList
from primepar.passes.merge_products import _Group
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Cut, Join
from primepar.verify import verify_program

freeing, delaying, overlapping = (
    import_module(f"primepar.passes.{name}") for name in ("free_early", "make_late", "overlap")
)


def assert_refused(made: Program, given: Program, *properties: str) -> None:
    """What is made is refuted for one of some properties, and does not run."""
    refuted = {
        result.name for result in verify_program(made).properties if result.verdict == "refuted"
    }
    assert refuted.intersection(properties)
    with pytest.raises(EmulationError):
        emulate(made, memories(given))


def test_a_free_before_the_last_use_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = lowered("megatron-sp", 4, "gpt2")

    def first_use(self: Any, place: int, used: Any, posts: int) -> None:
        for name in (*used.reads, *used.made):
            self._last.setdefault(name, place)

    monkeypatch.setattr(freeing._Ends, "_use", first_use)
    assert_refused(free_early(given), given, "placement", "races")


@pytest.mark.parametrize("name", ["summa", "tesseract"])
def test_products_merged_across_a_use_are_refuted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = apply(lowered(name, 4, "gpt2"), ["free-early"])
    assert merge_products(given) is given
    monkeypatch.setattr(RankList, "is_waiting", lambda *args: False)
    monkeypatch.setattr(_Group, "_is_still", lambda *args: True)
    assert_refused(merge_products(given), given, "placement", "alignment", "completion", "races")


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
            {"op": "all_reduce", "group": [0, 1], "block": block} for block in ("x[0]", "x[1]")
        ]
        waits: list[Json] = []
        if posted:
            calls = [{**call, "request": call["block"]} for call in calls]
            waits = [{"op": "wait", "request": call["block"]} for call in calls]
        used = compute("g", ["x[0]"], "y[0]", M=0, R=rank)
        inner = [used if node == USE else node for node in between]
        lists.append(
            [*computes, calls[0], *inner, calls[1], *waits, *[used] * (USE not in between)]
        )
    initial = [[f"a[{m},{rank}]" for m in (0, 1)] for rank in (0, 1)]
    grid = {"f": {"M": 2, "N": 2}, "g": {"M": 1, "R": 2}}
    final = [["x[0]", "x[1]", "y[0]"]] * 2
    return built(program(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                         final=final))  # fmt: skip


USE: Json = {"op": "use"}
"""A product that reads x[0]; it comes last if it is not between the all-reduces."""


@pytest.mark.parametrize("posted", [False, True])
def test_all_reduces_of_adjoining_blocks_are_one(posted: bool) -> None:
    given = sums([], posted)
    made = merge_collectives(given)
    assert verify_program(given).verdict == verify_program(made).verdict == "proved"
    for nodes in made.programs:
        parts, whole = ("x[0]", "x[1]"), "x.joined[0]"
        assert Join(parts, whole, in_place=True) in nodes
        assert Cut(whole, parts, in_place=True) in nodes
        assert [node.block for node in nodes if isinstance(node, AllReduce)] == [whole]
    runs = [emulate(program, memories(given)) for program in (given, made)]
    assert runs[0].sent == runs[1].sent
    assert [
        {name: held.array.tolist() for name, held in blocks.items()} for blocks in runs[0].blocks
    ] == [{name: held.array.tolist() for name, held in blocks.items()} for blocks in runs[1].blocks]
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
    assert verify_program(given).verdict == "proved"
    monkeypatch.setattr(RankList, "between", lambda *args: ())
    assert_refused(merge_collectives(given), given, "completion")


def test_a_post_past_a_write_of_its_block_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = apply(lowered("summa", 4, "gpt2"), ["free-early"])

    def stopped_by(self: Any, used: Any, request: Any, blocks: bool, room: int) -> list[Any]:
        stopped, self.posts = (self.posts, []) if blocks else ([], self.posts)
        return [node for node, _, _ in stopped]

    monkeypatch.setattr(overlapping._Posts, "stopped_by", stopped_by)
    assert_refused(overlap(given), given, "placement", "races")


def test_a_wait_past_a_use_of_its_block_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = apply(lowered("summa", 4, "gpt2"), ["free-early"])
    monkeypatch.setattr(overlapping._Late, "_release_conflicting", lambda *args: None)
    assert_refused(overlap(given), given, "races")


def addition(reads: list[str], block: str) -> Json:
    return {"op": "compute", "reads": reads, "accumulates": block}


USE_OF_C: Json = addition(["c[0]"], "e[0]")
CUT_OF_A: Json = {"op": "cut", "block": "a[0]", "blocks": ["half[0]", "half[1]"], "in_place": True}


@pytest.mark.parametrize("between", [USE_OF_C, CUT_OF_A])
def test_a_block_made_after_its_use_or_without_its_operand_is_refuted(
    between: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c = a is best made after b is freed; a use of c, or the end of a, forbids that."""
    made = [addition(["a[0]"], "c[0]"), addition(["b[0]", "x[0]"], "e[0]")]
    frees: list[Json] = [{"op": "free", "block": f"{name}[0]"} for name in "xb"]
    nodes = [*made, frees[0], between, frees[1], addition(["c[0]"], "f[0]")]
    tensors: Json = {name: {"cuts": [[0, 4]]} for name in "abce"}
    tensors |= {name: {"cuts": [[0, 1]]} for name in "fx"}
    tensors["half"] = {"cuts": [[0, 2, 4]], "of": "a"}
    given = built(program([nodes], tensors=tensors, initial=[["a[0]", "b[0]", "x[0]"]]))
    delayed = make_late(given)
    assert [given.programs[0].index(node) for node in delayed.programs[0]] == [1, 2, 0, 3, 4, 5]
    assert verify_program(given).verdict == verify_program(delayed).verdict == "proved"

    def is_in_the_way(used: Any, block: str, operands: set[str]) -> bool:
        return "f[0]" in used.made

    monkeypatch.setattr(delaying, "is_in_the_way", is_in_the_way)
    assert_refused(make_late(given), given, "placement")
