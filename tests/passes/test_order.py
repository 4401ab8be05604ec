"""Passes that only change the order: what each is for, and that a wrong order is refuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace
from pass_cases import (
    addition,
    assert_refused,
    assert_same,
    free,
    local,
    raises_no_peak,
    refuted,
    step,
)
from phase_programs import Json
from pipelined_plans import pipelined
from profiles import few
from step_cases import passed

from primepar.models import ModelConfig
from primepar.operators import StepPart, lower_part, lower_step
from primepar.passes import PASSES, apply, free_early, make_late, needed_first, overlap
from primepar.passes.block_uses import Rank, RankList, request_of
from primepar.passes.liveness import peaks, sizes_of
from primepar.passes.overlap import ORDER, Carried
from primepar.plan import preset_plan
from primepar.schedule import Program
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

freeing, delaying, ordering = (
    import_module(f"primepar.passes.{name}") for name in ("free_early", "make_late", "needed_first")
)
MOVING = ("needed-first", "partial-sums", "overlap")
CUT_OUTSIDE = [("megatron-sp", 4), ("M2,megatron-sp", 8), ("M2,megatron-sp", 4)]

# Free early


def test_a_block_is_freed_after_its_last_use_or_its_wait() -> None:
    post: Json = {"op": "irecv", "peer": 0, "block": "z[0]", "request": "r"}
    wait: Json = {"op": "wait", "request": "r"}
    old = local([addition("x", "y"), post, addition("y", "w"), wait, free("x")], {},
                initial=[["x[0]"]], final=[["w[0]"]])  # fmt: skip
    first, second, third, fourth, _ = old.programs[0]
    x, y, z = (Free(f"{name}[0]") for name in "xyz")
    assert free_early(old).programs[0] == (first, x, second, third, y, fourth, z)
    kept = replace(old, final=None)  # anything may be needed at the end: only `free x` moves up
    assert free_early(kept).programs[0] == (first, x, second, third, fourth)


def test_what_is_cut_and_not_needed_after_is_cut_in_place() -> None:
    halves = ["x.halves[0]", "x.halves[1]"]
    cut: Json = {"op": "cut", "block": "x[0]", "blocks": halves}
    join: Json = {"op": "join", "blocks": halves, "block": "x[0]"}
    more: Json = {"tensors": {"x.halves": {"of": "x", "cuts": [[0, 2, 4]]}}}
    old = local([cut, join], {"x": 4}, initial=[["x[0]"]], final=[["x[0]"]], **more)
    (nodes,) = free_early(old).programs
    assert [getattr(node, "in_place", None) for node in nodes] == [True, True]
    assert peaks(free_early(old)) == [4]
    more = {"tensors": {"x.halves": {"of": "x", "cuts": [[0, 2, 4]]}}}
    kept = local([cut], {"x": 4}, initial=[["x[0]"]], final=[["x[0]"]], **more)
    assert free_early(kept).programs[0] == (*kept.programs[0], *map(Free, halves))


def test_a_free_that_is_wrong_stays() -> None:
    post: Json = {"op": "isend", "peer": 0, "block": "x[0]", "request": "r"}
    wait: Json = {"op": "wait", "request": "r"}
    for nodes in ([free("x"), free("x")], [post, free("x"), wait], [free("y")]):
        old = local(nodes, {}, initial=[["x[0]"]])
        assert free_early(old) is old


def test_a_free_before_the_last_use_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given, lives = step("megatron-sp", 4, "gpt2", *PASSES), freeing._lives

    def at_first_use(line: RankList, final: Any) -> Iterator[tuple[int, int, str]]:
        for last, end, name in lives(line, final):
            yield line.touches.get(name, [last])[0], end, name

    monkeypatch.setattr(freeing, "_lives", at_first_use)
    assert_refused(free_early(given), given, "placement", "races")


# Make late


def test_a_block_is_made_after_the_frees_that_lower_the_peak() -> None:
    """The gradient of the activation I, then that of W, as lowered: I and dI are live together."""
    nodes = [addition("dO W", "dI"), free("W"), addition("I dO", "dW"), free("I"), free("dO"),
             addition("dI", "dz"), free("dI")]  # fmt: skip
    sizes = {"I": 4, "W": 2, "dO": 1, "dI": 4, "dW": 2, "dz": 4}
    old = local(nodes, sizes, initial=[["I[0]", "W[0]", "dO[0]"]], final=[["dW[0]", "dz[0]"]])
    new = make_late(old)
    assert [old.programs[0].index(node) for node in new.programs[0]] == [2, 3, 0, 1, 4, 5, 6]
    assert (peaks(old), peaks(new)) == ([11], [10])


def mlp(preset: str, *without: str) -> StepPart:
    """M = h = 64 on 4 ranks: x, dy and both weights have M h elements or 4 M h in all."""
    config = ModelConfig.of(
        "gpt2", mlp_bias=False, layers=1, hidden=64, heads=4, vocabulary=64, context=8
    )
    passes = [name for name in PASSES if name not in without]
    operators = [f"blocks.0.{name}" for name in ("fc1", "act", "fc2")]
    return lower_part(preset_plan(preset, config, 4), operators, 8, 8, passes)


def new_elements(part: StepPart) -> float:
    """The peak of backward above x, dy and the weights, in units of M h elements; y is new."""
    size, held = sizes_of(part.backward), sizes_of(part.forward)
    initial, ends = (part.forward.initial or ())[0], (part.forward.final or ())[0]
    given = sum(held(name) or 0 for name in initial)
    given += sum(size(name) or 0 for name in (part.backward.initial or ())[0] if "dy" in name)
    y = sum(held(name) or 0 for name in ends if name not in part.kept[0])
    (peak,) = set(peaks(part.backward))
    return (peak + y - given) / 64**2


@few
@pytest.mark.parametrize(
    ("preset", "before", "after"),
    [
        ("megatron", 5, 4),
        ("megatron-sp", 5, 4),
        ("stationary", 5.5, 5.25),
        ("primepar", 6.25, 6.25),
        ("data", 9.25, 9),
    ],
)
def test_di_after_dw_lowers_the_peak_of_an_mlp(preset: str, before: float, after: float) -> None:
    old, new = mlp(preset, "make-late"), mlp(preset)
    assert (new_elements(old), new_elements(new)) == (before, after)
    assert_same(old.backward, new.backward)


CUT_OF_A: Json = {"op": "cut", "block": "a[0]", "blocks": ["half[0]", "half[1]"], "in_place": True}


@pytest.mark.parametrize("between", [addition("c", "e"), CUT_OF_A])
def test_a_block_made_after_its_use_or_without_its_operand_is_refuted(
    between: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c = a is best made after b is freed; a use of c, or the end of a, forbids that."""
    nodes = [addition("a", "c"), addition("b", "e"), free("x"), between, free("b"),
             addition("c", "f")]  # fmt: skip
    sizes = {**dict.fromkeys("abcef", 4), "x": 1}
    given = local(nodes, sizes, initial=[["a[0]", "b[0]", "x[0]"]],
                  tensors={"half": {"cuts": [[0, 2, 4]], "of": "a"}})  # fmt: skip
    delayed = make_late(given)
    assert [given.programs[0].index(node) for node in delayed.programs[0]] == [1, 2, 0, 3, 4, 5]
    assert refuted(given) == refuted(delayed) == set()
    monkeypatch.setattr(delaying, "is_in_the_way", lambda used, *_: "f[0]" in used.made)
    assert_refused(make_late(given), given, "placement")


# Needed first


def hidden(nodes: Sequence[Instruction], block: str) -> list[int]:
    """The number of products during each transfer whose block starts so."""
    posts, counts = dict[str, int](), list[int]()
    for place, node in enumerate(nodes):
        if isinstance(node, Wait) and node.request in posts:
            between = nodes[posts[node.request] : place]
            counts.append(sum(isinstance(node, Compute) for node in between))
        elif request_of(node) is not None and getattr(node, "block", "").startswith(block):
            posts[str(request_of(node))] = place
    return counts


@few
@pytest.mark.parametrize(("name", "ranks"), CUT_OUTSIDE)
def test_the_gather_for_dw_is_hidden_behind_the_product_of_di(name: str, ranks: int) -> None:
    given = step(name, ranks, "gpt2", *MOVING)
    made = needed_first(given)
    for old, new in zip(overlap(given).programs, overlap(made).programs, strict=True):
        before, after = hidden(old, "blocks.0.norm2["), hidden(new, "blocks.0.norm2[")
        half = len(after) // 2
        assert not any(before[half:]), "backward"
        assert all(after[half:]), "backward"
    assert_same(given, made)
    for one in range(ranks):
        for another in range(one):
            assert shared(made, one, another) == shared(made, another, one)


def shared(program: Program, rank: int, other: int) -> list[object]:
    """What a rank calls together with another one; messages in both directions are alike."""
    calls: list[object] = []
    for node in program.programs[rank]:
        if isinstance(node, Collective) and other in node.group:
            calls.append((type(node), node.group))
        elif isinstance(node, ISend | IRecv) and node.peer == other:
            calls.append("message")
    return calls


@pytest.mark.parametrize("name", ["data", "megatron", "primepar", "summa"])
def test_a_step_without_such_transfers_stays(name: str) -> None:
    given = step(name, 4, "gpt2", *MOVING)
    assert needed_first(given) is given


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_messages_between_stages_keep_their_order(schedule: str) -> None:
    plan = pipelined(schedule, "megatron-sp", 4)
    before = [name for name in PASSES if name not in MOVING]
    given = lower_step(plan, plan.batch or 0, 4, passes=before)
    made = needed_first(given)
    assert made != given
    assert refuted(made) == set()


def test_a_transfer_before_its_block_is_made_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    given = step("megatron-sp", 4, "gpt2", *MOVING)
    for name in ("may_pass", "gains"):
        monkeypatch.setattr(ordering._Posts, name, lambda *args: True)
    assert_refused(needed_first(given), given, "placement", "alignment", "races")


def test_a_transfer_that_moves_on_some_ranks_alone_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, move = step("megatron-sp", 4, "gpt2", *MOVING), ordering._Posts.move

    def on_some(self: Any, places: list[int], target: int) -> None:
        if self.number:
            move(self, places, target)

    monkeypatch.setattr(ordering._Posts, "move", on_some)
    assert_refused(needed_first(given), given, "deadlock-freedom")


# Overlap


def test_sums_of_gradients_hide_behind_the_rest_of_backward() -> None:
    nodes, last = passed("data", 4, "gpt2").programs[0], "blocks.0.qkv.weight.grad[0,0]"
    (post,) = (place for place, node in enumerate(nodes)
               if isinstance(node, AllReduce) and last in node.reduced)  # fmt: skip
    call = nodes[post]
    assert isinstance(call, AllReduce)
    wait = nodes.index(Wait(str(call.request)))
    phases = [node.phase for node in nodes[post:wait] if isinstance(node, Compute)]
    assert "embedding.backward" in phases
    between = (used.names for used in RankList(nodes[post + 1 : wait], Rank(0)).uses)
    assert {name for names in between for name in names}.isdisjoint(call.reduced)


@pytest.mark.parametrize("name", ["megatron-sp", "summa", "primepar", "stationary", "M2,megatron"])
def test_the_order_in_which_ranks_post_stays(name: str) -> None:
    old = step(name, 4, "llama", "overlap")
    new = overlap(old)
    assert [posts(nodes) for nodes in old.programs] == [posts(nodes) for nodes in new.programs]
    assert raises_no_peak(old, new)


def posts(nodes: Sequence[Instruction]) -> list[Instruction]:
    """Messages, and collectives without the requests that they may get."""
    return [
        replace(node, request=None) if isinstance(node, Collective) else node
        for node in nodes
        if isinstance(node, ISend | IRecv | Collective)
    ]


def test_what_is_carried_past_a_use_of_its_blocks_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, stopped_by = apply(step("summa", 4, "gpt2", *PASSES), ["free-early"]), Carried.stopped_by

    def by_order_alone(self: Any, other: Any) -> Any:
        return stopped_by(self, other) if ORDER in other.changes else iter(())

    monkeypatch.setattr(Carried, "stopped_by", by_order_alone)
    assert_refused(overlap(given), given, "placement", "races")
