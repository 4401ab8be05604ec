"""Reduce-scatters as messages: the same sums, the same elements sent, and never a deadlock."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace
from oracle.explore import explore
from phase_programs import Json, built, compute, program, sums
from test_passes import assert_same
from test_passes_wrong import assert_refused

from primepar.operators.single_operator import lower_linear, resident_layout
from primepar.partition import parse_sequence
from primepar.passes import apply, partial_sums
from primepar.passes.block_uses import RankList
from primepar.passes.liveness import peaks
from primepar.schedule import Linear, Program
from primepar.schedule.movement import Movement
from primepar.schedule.program import AllReduce, Compute, Free, IRecv, ISend, ReduceScatter, Wait
from primepar.schedule.signature import Bound
from primepar.verify import verify_program

messages = import_module("primepar.passes.partial_sums")


def scattered(
    ranks: int,
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


def count(made: Program, *kinds: type) -> list[int]:
    return [sum(isinstance(node, kinds) for node in nodes) for nodes in made.programs]


# What it makes


def test_two_members_exchange_their_partial_sums() -> None:
    given = scattered(2)
    made = partial_sums(given)
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
    given = reduced()
    made = partial_sums(given)
    assert_same(given, made)
    assert made.programs[1][2:] == (
        IRecv(0, "x[0]'", request="x[0] sum2<0"),
        ISend(0, "x[0]", request="x[0] sum2>0"),
        Wait("x[0] sum2>0"),
        Wait("x[0] sum2<0"),
        Compute(("x[0]'",), "x[0]"),
        Free("x[0]'"),
    )


@pytest.mark.parametrize("make", ["scattered", "reduced"])
def test_the_messages_end_in_every_order_of_execution(make: str) -> None:
    given = scattered(2) if make == "scattered" else reduced()
    assert explore(apply(given)).failed == frozenset()
    assert partial_sums(partial_sums(given)) == partial_sums(given)


def test_sums_of_more_than_two_stay() -> None:
    assert partial_sums(scattered(3)) == scattered(3)


@pytest.mark.parametrize("text", ["Is2x2", "Ns2", "Ks2", "M2,Ks2"])
def test_a_linear_operator_has_no_reduce_scatter_left(text: str) -> None:
    sequence = parse_sequence(text)
    source = resident_layout(Movement(sequence), "forward", "I")
    made = lower_linear(sequence, Linear(M=8, N=16, K=32), source)
    for part in made[:2]:
        assert verify_program(part).verdict == "proved"
        assert count(part, ReduceScatter) == [0] * part.ranks


def test_a_partial_sum_travels_behind_the_next_products() -> None:
    """The sum of dI is exchanged while dW is computed, and added after its first product."""
    sequence = parse_sequence("Os2x2")
    source = resident_layout(Movement(sequence), "forward", "I")
    nodes = lower_linear(sequence, Linear(M=8, N=16, K=32), source).backward.programs[0]
    for kind in (ISend, IRecv):
        (post,) = (node for node in nodes if isinstance(node, kind) and node.block.startswith("dI"))
        between = nodes[nodes.index(post) : nodes.index(Wait(post.request))]
        phases = [node.phase for node in between if isinstance(node, Compute)]
        assert "linear.gradient" in phases


# What stays


@pytest.mark.parametrize("changed", [{"scale": "1/2"}, {"reduction": "max"}], ids=str)
@pytest.mark.parametrize("make", ["scattered", "reduced"])
def test_other_reductions_stay(make: str, changed: Json) -> None:
    given = scattered(2, **changed) if make == "scattered" else reduced(**changed)
    assert partial_sums(given) is given


def roomy() -> Program:
    """Two sums in one call and one in another, with memory for scratch blocks."""
    return replace(built(sums()), memory=Bound(device=100))


def test_a_call_of_several_blocks_stays() -> None:
    """The last sum is a call of its own: that becomes messages."""
    given = roomy()
    made = partial_sums(given)
    assert_same(given, made)
    for nodes in made.programs:
        calls = [node.reduced for node in nodes if isinstance(node, AllReduce)]
        assert calls == [("u[0]", "v[0]")]


def test_messages_of_the_first_of_several_blocks_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_plain_sum = messages._is_plain_sum

    def of_the_first(node: Any, *args: Any) -> bool:
        return bool(is_plain_sum(replace(node, also=()), *args))

    monkeypatch.setattr(messages, "_is_plain_sum", of_the_first)
    made = partial_sums(roomy())
    assert count(made, AllReduce) == [0, 0]
    assert refuted(made) == {"completion"}


def test_a_posted_reduce_scatter_stays() -> None:
    given = scattered(2, request="a")
    assert partial_sums(given) is given


def test_blocks_of_several_sizes_stay() -> None:
    """The members of a ring send as much as they keep, which is not what the messages send."""
    given = scattered(2, rows=(0, 1, 4))
    assert partial_sums(given) is given


POST: Json = {"op": "isend", "peer": 1, "block": "y[0]", "request": "y"}
ARRIVE: Json = {"op": "irecv", "peer": 0, "block": "y[0]", "request": "y"}
DONE: Json = {"op": "wait", "request": "y"}


def test_a_message_that_passes_the_reduce_scatter_keeps_it() -> None:
    """Rank 0 posts y before the reduce-scatter, and rank 1 takes it only after."""
    given = scattered(2, ([[POST], []], [[DONE], [ARRIVE, DONE]]))
    assert verify_program(given).verdict == "proved"
    assert partial_sums(given) is given
    same = scattered(2, ([[POST], [ARRIVE]], [[DONE], [DONE]]))
    assert count(partial_sums(same), ReduceScatter) == [0, 0]
    assert_same(same, partial_sums(same))


def test_no_scratch_block_raises_the_peak() -> None:
    """All four operands, y and both blocks of x are live: a scratch block would be the peak."""
    given = scattered(2, frees=False)
    assert peaks(given) == [10, 8]
    assert partial_sums(given) is given
    assert peaks(partial_sums(replace(given, memory=Bound(device=12)))) == [12, 10]
    given = scattered(2)
    assert peaks(partial_sums(given)) == peaks(given) == [10, 8]


def test_forward_may_use_as_much_memory_as_backward() -> None:
    """The sums of O are the peak of forward, which is below that of backward."""
    sequence = parse_sequence("Is2x2")
    source = resident_layout(Movement(sequence), "forward", "I")
    forward, backward = lower_linear(sequence, Linear(M=32, N=16, K=32), source)[:2]
    assert forward.memory == backward.memory == Bound(device=max(peaks(backward)))
    assert count(forward, ReduceScatter) == [0] * 4
    assert max(peaks(forward)) <= max(peaks(backward))
    assert verify_program(forward)["memory"].verdict == "proved"


# Broken on purpose


def broken(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> Program:
    """The pass with other messages and sums."""
    make = messages._messages

    def changed(*args: Any) -> Any:
        return {place: change(nodes) for place, nodes in make(*args).items()}

    monkeypatch.setattr(messages, "_messages", changed)
    return partial_sums(scattered(2))


def refuted(made: Program) -> set[str]:
    return {part.name for part in verify_program(made).properties if part.verdict == "refuted"}


def test_a_sum_that_is_left_out_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    total = Compute(("x[1]'",), "x[1]")
    made = broken(monkeypatch, lambda nodes: [node for node in nodes if node != total])
    assert refuted(made) == {"completion"}


def test_a_sum_before_its_wait_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(
        monkeypatch, lambda nodes: sorted(nodes, key=lambda node: not isinstance(node, IRecv))
    )
    assert refuted(made) == set()
    made = broken(monkeypatch, lambda nodes: sorted(nodes, key=lambda node: isinstance(node, Wait)))
    assert "races" in refuted(made)


def test_messages_to_others_than_the_owners_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member sends its own block."""

    def change(nodes: list[Any]) -> list[Any]:
        kept = next((node.accumulates for node in nodes if isinstance(node, Compute)), "")
        return [replace(node, block=kept) if isinstance(node, ISend) else node for node in nodes]

    assert "completion" in refuted(broken(monkeypatch, change))


def test_messages_in_another_order_than_before_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = scattered(2, ([[POST], []], [[DONE], [ARRIVE, DONE]]))
    monkeypatch.setattr(messages, "in_order", lambda program, calls: calls)
    assert_refused(partial_sums(given), given, "completion", "placement")


def test_a_scratch_block_that_exists_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has a block of the scratch block's name in flight."""
    names: list[Json] = [{"op": "irecv", "peer": 1, "block": "x[0]'", "request": "z"}]
    other: list[Json] = [{"op": "isend", "peer": 0, "block": "x[0]", "request": "z"}]
    done: Json = {"op": "wait", "request": "z"}
    free: Json = {"op": "free", "block": "x[0]'"}
    given = scattered(2, ([names, [*other, done]], [[done, free], []]))
    assert verify_program(given).verdict == "proved"
    assert_same(given, partial_sums(given))
    monkeypatch.setattr(RankList, "is_absent", lambda *args: True)
    assert "races" in refuted(partial_sums(given))
