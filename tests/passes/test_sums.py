"""Sums of two ranks as messages: the same sums, the same elements sent, and never a deadlock.

And sums that are reduced only where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace
from oracle.explore import explore
from pass_cases import assert_refused, assert_same, count, refuted
from phase_programs import Json, built, compute, program, sums

from primepar.operators.single_operator import LinearPrograms, lower_linear, resident_layout
from primepar.partition import parse_sequence
from primepar.passes import apply, partial_sums
from primepar.passes.block_uses import RankList
from primepar.passes.liveness import peaks
from primepar.schedule import Linear, Program
from primepar.schedule.movement import Movement
from primepar.schedule.program import AllReduce, Compute, Free, IRecv, ISend, ReduceScatter, Wait
from primepar.schedule.signature import Bound

messages = import_module("primepar.passes.partial_sums")


def scattered(
    ranks: int = 2,
    around: tuple[list[list[Json]], list[list[Json]]] | None = None,
    rows: tuple[int, ...] | None = None,
    frees: bool = True,
    **changed: Any,
) -> Program:
    """Each rank has a part of x[0], x[1], ...: rank r keeps the sum of x[r].

    `around` are instructions of each rank before and after its reduce-scatter; `rows` cuts x. With
    `frees` the operands are freed before it, so there is memory for more blocks.
    """
    members = range(ranks)
    line = list(rows or range(0, 2 * ranks + 1, 2))
    phases = {"f": {"reads": ["a[M,N]"], "writes": "x[M]"}}
    tensors = {
        "a": {"cuts": [line, [*range(ranks + 1)]]},
        "x": {"cuts": [line]},
        "y": {"cuts": [[0, 2]]},
    }
    before, after = around or ([[] for _ in members], [[] for _ in members])
    blocks = [f"x[{m}]" for m in members]
    lists: list[list[Json]] = []
    for rank in members:
        call = {"op": "reduce_scatter", "group": [*members], "blocks": blocks,
                "block": blocks[rank], **changed}  # fmt: skip
        waits = [{"op": "wait", "request": changed["request"]}] if "request" in changed else []
        lists.append([
            *(compute("f", [f"a[{m},{rank}]"], blocks[m], M=m, N=rank) for m in members),
            *({"op": "free", "block": f"a[{m},{rank}]"} for m in members if frees),
            *before[rank], call, *waits, *after[rank],
            *({"op": "free", "block": block} for block in blocks if block != blocks[rank]),
        ])  # fmt: skip
    initial = [[*(f"a[{m},{rank}]" for m in members), *["y[0]"] * (rank == 0)] for rank in members]
    grid = {"f": {"M": ranks, "N": ranks}}
    final = [[blocks[rank]] for rank in members]
    return built(program(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                         final=final))  # fmt: skip


def reduced(**changed: Any) -> Program:
    """Both ranks have a part of x[0], and need the sum."""
    phases = {"f": {"reads": ["a[M,N]"], "writes": "x[M]"}}
    tensors = {"a": {"cuts": [[0, 2], [0, 1, 2]]}, "x": {"cuts": [[0, 2]]}, "b": {"cuts": [[0, 4]]}}
    call = {"op": "all_reduce", "group": [0, 1], "block": "x[0]", **changed}
    lists: list[list[Json]] = [
        [
            compute("f", [f"a[0,{rank}]"], "x[0]", M=0, N=rank),
            {"op": "free", "block": f"a[0,{rank}]"},
            call,
        ]
        for rank in (0, 1)
    ]
    initial = [[f"a[0,{rank}]"] for rank in (0, 1)]
    return built(program(lists, phases=phases, tensors=tensors, grid={"f": {"M": 1, "N": 2}},
                         initial=initial, final=[["x[0]"]] * 2))  # fmt: skip


def linear(text: str, **sizes: int) -> LinearPrograms:
    """The programs of a linear operator with its input where the sequence leaves it."""
    sequence = parse_sequence(text)
    source = resident_layout(Movement(sequence), "forward", "I")
    return lower_linear(sequence, Linear(**({"M": 8, "N": 16, "K": 32} | sizes)), source)


# What it makes


def test_two_members_exchange_their_partial_sums() -> None:
    made = partial_sums(given := scattered())
    assert_same(given, made)
    assert made.programs[0][4:] == (
        IRecv(1, "x[0]'", request="x[0] sum4<1"),
        ISend(1, "x[1]", request="x[0] sum4>1"),
        Wait("x[0] sum4<1"),
        Compute(("x[0]'",), "x[0]"),
        Free("x[0]'"),
        Wait("x[0] sum4>1"),
        Free("x[1]"),
    )


def test_both_members_of_an_all_reduce_add_the_same() -> None:
    made = partial_sums(given := reduced())
    assert_same(given, made)
    assert made.programs[1][2:] == (
        IRecv(0, "x[0]'", request="x[0] sum2<0"),
        ISend(0, "x[0]", request="x[0] sum2>0"),
        Wait("x[0] sum2>0"),
        Wait("x[0] sum2<0"),
        Compute(("x[0]'",), "x[0]"),
        Free("x[0]'"),
    )


MADE: dict[str, Callable[..., Program]] = {"scattered": scattered, "reduced": reduced}


@pytest.mark.parametrize("make", MADE)
def test_the_messages_end_in_every_order_of_execution(make: str) -> None:
    assert explore(apply(MADE[make]())).failed == frozenset()


@pytest.mark.parametrize("text", ["Is2x2", "Ns2", "Ks2", "M2,Ks2"])
def test_a_linear_operator_has_no_reduce_scatter_left(text: str) -> None:
    for part in linear(text)[:2]:
        assert refuted(part) == set()
        assert [count(part, ReduceScatter, rank) for rank in range(part.ranks)] == [0] * part.ranks


def test_a_partial_sum_travels_behind_the_next_products() -> None:
    """The sum of dI is exchanged while dW is computed, and added after its first product."""
    nodes = linear("Os2x2").backward.programs[0]
    for kind in (ISend, IRecv):
        (post,) = (node for node in nodes if isinstance(node, kind) and node.block.startswith("dI"))
        between = nodes[nodes.index(post) : nodes.index(Wait(post.request))]
        phases = [node.phase for node in between if isinstance(node, Compute)]
        assert "linear.gradient" in phases


# What stays


STAYING = {
    "scaled": scattered(scale="1/2"),
    "scaled, on both": reduced(scale="1/2"),
    "a maximum": scattered(reduction="max"),
    "a maximum, on both": reduced(reduction="max"),
    "of three members": scattered(3),
    "posted": scattered(request="a"),
    "of unlike sizes": scattered(rows=(0, 1, 4)),  # a ring sends what it keeps, messages would not
    "without memory": scattered(frees=False),  # a scratch block would be the peak
}


@pytest.mark.parametrize("name", STAYING)
def test_other_reductions_stay(name: str) -> None:
    assert partial_sums(STAYING[name]) is STAYING[name]


def test_no_scratch_block_raises_the_peak() -> None:
    assert peaks(partial_sums(scattered())) == peaks(scattered()) == [10, 8]
    full = scattered(frees=False)
    assert peaks(full) == [10, 8]
    assert peaks(partial_sums(replace(full, memory=Bound(device=12)))) == [12, 10]


def test_forward_may_use_as_much_memory_as_backward() -> None:
    """The sums of O are the peak of forward, which is below that of backward."""
    forward, backward = linear("Is2x2", M=32)[:2]
    assert forward.memory == backward.memory == Bound(device=max(peaks(backward)))
    assert [count(forward, ReduceScatter, rank) for rank in range(4)] == [0] * 4
    assert max(peaks(forward)) <= max(peaks(backward))
    assert refuted(forward) == set()


ROOMY = replace(built(sums()), memory=Bound(device=100))
"""Two sums in one call and one in another, with memory for scratch blocks."""


def test_a_call_of_several_blocks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last sum is a call of its own: that becomes messages. Messages of a part are refuted."""
    made = partial_sums(ROOMY)
    assert_same(ROOMY, made)
    for nodes in made.programs:
        calls = [node.reduced for node in nodes if isinstance(node, AllReduce)]
        assert calls == [("u[0]", "v[0]")]
    is_plain = messages._is_plain_sum
    monkeypatch.setattr(
        messages, "_is_plain_sum", lambda node, *args: is_plain(replace(node, also=()), *args)
    )
    assert refuted(partial_sums(ROOMY)) == {"completion"}


POST: Json = {"op": "isend", "peer": 1, "block": "y[0]", "request": "y"}
ARRIVE: Json = {"op": "irecv", "peer": 0, "block": "y[0]", "request": "y"}
DONE: Json = {"op": "wait", "request": "y"}


def test_a_message_that_passes_the_reduce_scatter_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 posts y before the reduce-scatter, and rank 1 takes it only after."""
    given = scattered(2, ([[POST], []], [[DONE], [ARRIVE, DONE]]))
    assert refuted(given) == set()
    assert partial_sums(given) is given
    same = scattered(2, ([[POST], [ARRIVE]], [[DONE], [DONE]]))
    assert_same(same, partial_sums(same))
    assert count(partial_sums(same), ReduceScatter) == 0
    monkeypatch.setattr(messages, "in_order", lambda program, calls: calls)
    assert_refused(partial_sums(given), given, "completion", "placement")


def test_a_scratch_block_that_exists_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has a block of the scratch block's name in flight."""
    names: list[Json] = [{"op": "irecv", "peer": 1, "block": "x[0]'", "request": "z"}]
    other: list[Json] = [{"op": "isend", "peer": 0, "block": "x[0]", "request": "z"}]
    done: Json = {"op": "wait", "request": "z"}
    free: Json = {"op": "free", "block": "x[0]'"}
    given = scattered(2, ([names, [*other, done]], [[done, free], []]))
    assert refuted(given) == set()
    assert_same(given, partial_sums(given))
    monkeypatch.setattr(RankList, "is_absent", lambda *args: True)
    assert "races" in refuted(partial_sums(given))
