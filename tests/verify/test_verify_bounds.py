"""Memory and traffic of programs: counted as the emulator does, refuted with whole sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from one_mesh import verify_side
from profiles import few
from test_verify_program import irecv, isend, program, recv, send, wait

from primepar.partition import PRIMITIVES, PrimePar, parse_sequence
from primepar.reference.emulator.executor import emulate
from primepar.reference.emulator.tensors import scatter
from primepar.schedule import Linear, Sequence, lower
from primepar.schedule.ledger import peak
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import tensor_dims
from primepar.schedule.primitive import Value
from primepar.schedule.signature import Bound
from primepar.verify.program import verify_program

Json = dict[str, Any]
SIDES = {1: ((1,), (2,), (3,)), 2: ((1, 2), (2, 2)), 3: ((1, 2, 1), (2, 1, 1))}
CUTS: Json = {name: {"cuts": [[0, 2, 8]]} for name in ("x", "y", "z")}
X, Y, Z = "x[1]", "y[0]", "z[1]"


def free(block: str) -> Json:
    return {"op": "free", "block": block}


def sequences() -> list[Sequence]:
    single = [
        Sequence.of(kind(), *sides)
        for kind in PRIMITIVES.values()
        for sides in SIDES[len(kind().side_names)]
    ]
    return [*single, *map(parse_sequence, ("", "K,P2x2", "P2x2,N", "M,Ks2"))]


@few
@pytest.mark.parametrize("sequence", sequences(), ids=str)
def test_what_is_counted_is_what_the_emulator_counts(sequence: Sequence) -> None:
    operator = Linear.smallest(sequence.grid)
    lowered = lower(sequence, operator)
    dense = {tensor: np.ones([operator.size(dim) for dim in tensor_dims(tensor)
                              if dim in sequence.grid]) for tensor in ("I", "W", "dO")}  # fmt: skip
    run = emulate(lowered, scatter(lowered.initial or (), sequence.grid, dense))
    assert [peak(lowered, r, Meaning(lowered).size) for r in range(lowered.ranks)] == run.peak
    bounded_ = replace(
        lowered, memory=Bound(device=max(run.peak)), traffic=tuple(map(str, run.sent))
    )
    report = verify_program(bounded_)
    assert (report["memory"].verdict, report["traffic"].verdict) == ("proved", "proved")
    tight = verify_program(
        replace(
            bounded_, memory=Bound(device=max(run.peak) - 1), traffic=("99/7",) * sequence.ranks
        )
    )
    assert (tight["memory"].verdict, tight["traffic"].verdict) == ("refuted", "refuted")


def bounded(*ranks: list[Json], **fields: object) -> dict[str, tuple[str, str | None]]:
    """Name -> verdict, and counterexample or note, for memory and traffic."""
    report = verify_program(program(*ranks, tensors=CUTS, **fields))
    return {
        result.name: (result.verdict, result.counterexample or result.reason)
        for result in report.properties
        if result.name in ("memory", "traffic")
    }


def test_a_program_without_the_fields_is_not_asked() -> None:
    assert bounded([send(1, X)], [recv(0, X)]) == {}


def test_a_posted_receive_counts_from_its_post() -> None:
    ranks = [isend(1, X, "a"), wait("a")], [irecv(0, X, "b"), wait("b"), free(Z)]
    held = {"initial": [[X], [Z]], "memory": {"device": 12}}
    assert bounded(*ranks, **held) == {
        "memory": ("proved", "at most 12 of 12 live elements in device memory; "
                   "resident copies: x 1, z 1"),
    }  # fmt: skip
    assert bounded(*ranks, **{**held, "memory": {"device": 11}}) == {
        "memory": (
            "refuted",
            "rank 1, instruction 0 (irecv x[1] <- 0): expected at most 11 live elements in "
            "device memory, got 12: x[1] 6, z[1] 6: free one before, or allow more in memory",
        ),
    }


def test_a_block_that_is_listed_twice_counts_once() -> None:
    """In `initial`, and as a part of a join in place, where it is placement that is wrong."""
    twice = {"op": "join", "blocks": [X, X], "block": Z, "in_place": True}
    assert bounded([twice], initial=[[X, X]], memory={"device": 6}) == {
        "memory": ("proved", "at most 6 of 6 live elements in device memory; resident copies: x 1"),
    }


def test_the_start_and_the_host_have_bounds_too() -> None:
    evicts = [{"op": "evict", "block": X}, {"op": "alloc", "block": Y}]
    memory = {"device": 7, "host": 5}
    assert bounded(evicts, initial=[[X, Y]], memory=memory)["memory"][1] == (
        "rank 0, before its first instruction: expected at most 7 live elements in device memory, "
        "got 8: x[1] 6, y[0] 2: free one before, or allow more in memory"
    )
    assert bounded(evicts, initial=[[X]], memory=memory)["memory"][1] == (
        "rank 0, instruction 0 (evict x[1]): expected at most 5 live elements in host memory, "
        "got 6: x[1] 6: free one before, or allow more in memory"
    )
    memory = {"device": 6, "host": 6}
    fetched = [*evicts, {"op": "free", "block": Y}, {"op": "fetch", "block": X}]
    assert bounded(fetched, memory=memory) == {
        "memory": ("proved", "at most 6 of 6 live elements in device memory; at most 6 of 6 "
                   "live elements in host memory"),
    }  # fmt: skip


def test_what_is_cut_counts_together_with_its_whole() -> None:
    cuts = {"w": {"cuts": [[0, 8]]}, "half": {"of": "w", "cuts": [[0, 4, 8]]}}
    node = {"op": "cut", "block": "w[0]", "blocks": ["half[0]", "half[1]"]}
    asked = program([node], initial=[["w[0]"]], tensors=cuts, memory={"device": 15})
    assert verify_program(asked)["memory"].counterexample == (
        "rank 0, instruction 0 (cut w[0] -> half[0] half[1]): expected at most 15 live elements "
        "in device memory, got 16: w[0] 8, half[0] 4, half[1] 4: free one before, or allow more in "
        "memory"
    )


def test_blocks_of_unknown_size_are_unknown() -> None:
    sized = "the elements of X are not known: give the shape of the operator, or the cuts of its "
    assert bounded([send(1, "X")], [recv(0, "X")], memory={"device": 4}, traffic=[4, 0]) == {
        "memory": ("unknown", sized + "tensor in tensors"),
        "traffic": ("unknown", sized + "tensor in tensors"),
    }


def collective(op: str, **fields: object) -> Json:
    return {"op": op, "group": [0, 1, 2], **fields}


@pytest.mark.parametrize(
    ("node", "sent"),
    [
        (collective("all_reduce", block=X), [8, 8, 8]),
        (collective("all_gather", block=X, blocks=[X, Y, Z]), [12, 12, 12]),
        (collective("reduce_scatter", block=X, blocks=[X, X, Y]), ["28/3"] * 3),
        (collective("all_to_all", blocks=[X, Y, Y], into=[X, Y, Z]), [4, 8, 8]),
        (collective("broadcast", block=X, root=1), [0, 6, 6]),
        (collective("reduce", block=X, root=1), [6, 0, 6]),
        (collective("barrier"), [0, 0, 0]),
    ],
)
def test_collectives_are_counted_as_in_the_emulator(node: Json, sent: list[int | str]) -> None:
    assert bounded([node], [node], [node], traffic=sent) == {"traffic": ("proved", None)}
    for rank in range(3):
        wrong = [*sent[:rank], "1/7", *sent[rank + 1 :]]
        assert bounded([node], [node], [node], traffic=wrong)["traffic"][0] == "refuted"


def test_a_broadcast_counts_the_block_of_its_root() -> None:
    root, other = (collective("broadcast", block=block, root=0) for block in (X, "loose"))
    assert bounded([root], [other], [other], traffic=[6, 6, 0]) == {"traffic": ("proved", None)}


def test_wrong_traffic_names_the_rank_and_what_counts_most() -> None:
    body = [send(1, X), send(1, Y), send(1, Z)]
    receives = [recv(0, X), recv(0, Y), recv(0, Z)]
    more = [send(1, Y)], [recv(0, Y)]
    ranks = [*more[0], *body, {"op": "group", "body": body}], [
        *more[1], *receives, {"op": "group", "body": receives}]  # fmt: skip
    assert bounded(*ranks, traffic=[30, 0]) == {"traffic": ("proved", None)}
    assert bounded(*ranks, traffic=[28, 0])["traffic"][1] == (
        "rank 0: expected 28 elements to leave it, got 30: 14 by instruction 4 (group send x[1] "
        "-> 1; send y[0] -> 1; send z[1] -> 1), 6 by instruction 1 (send x[1] -> 1), 6 by "
        "instruction 3 (send z[1] -> 1) and 2 more: fix what it sends, or traffic"
    )
    assert bounded(*ranks, traffic=[30, 1])["traffic"][1] == (
        "rank 1: expected 1 elements to leave it, got 0: it sends nothing: "
        "fix what it sends, or traffic"
    )


def test_a_lowered_primitive_has_its_own_formulas() -> None:
    lowered = lower(parse_sequence("K4"), Linear(8, 8, 8))
    assert (lowered.memory, lowered.traffic) == (Bound(device=192), (96,) * 4)
    thirds = lower(parse_sequence("N3"), Linear(3, 3, 5))
    assert thirds.traffic == (20,) * 3
    assert lower(parse_sequence("N3"), Linear(3, 3, 4)).traffic == (16,) * 3
    assert lower(parse_sequence("K"), Linear(3, 1, 2)).traffic == (3,) * 2
    for other in (
        lower(parse_sequence("K4")),
        lower(parse_sequence("K4"), Linear(8, 8, 8), ("forward",)),
        lower(parse_sequence("K,N"), Linear(8, 8, 8)),
    ):
        assert (other.memory, other.traffic) == (None, None)


LOOSE = {
    "summa-rectangular": 99,
    **dict.fromkeys(("output-stays", "input-stays", "weight-stays"), 2),
    **{name: 2 for name, kind in PRIMITIVES.items() if kind.virtual},
}
"""Formulas that are upper bounds up to that side."""
EXACT = [
    (name, sides)
    for name, kind in PRIMITIVES.items()
    for sides in {1: ((1,), (2,), (4,)), 2: ((1, 2), (2, 1)), 3: ((1, 1, 2), (2, 1, 1))}[
        len(kind().side_names)
    ]
    if not name.startswith("three-d") or sides[0] < 4
]


@few
@pytest.mark.parametrize(("name", "sides"), EXACT)
@pytest.mark.parametrize("scale", [(1, 1, 1), (5, 1, 1), (1, 5, 1), (1, 1, 5)], ids=str)
def test_what_a_primitive_holds_is_what_its_formula_states(
    name: str, sides: tuple[int, ...], scale: tuple[int, int, int]
) -> None:
    sequence = Sequence.of(PRIMITIVES[name](), *sides)
    sizes = {dim: count * dict(zip("MNK", scale, strict=True)).get(dim, 1)
             for dim, count in sequence.grid.items()}  # fmt: skip
    lowered = lower(sequence, Linear(**sizes))
    assert lowered.memory is not None
    assert lowered.memory.device is not None
    most = max(peak(lowered, r, Meaning(lowered).size) for r in range(lowered.ranks))
    loose = max(sides) <= LOOSE.get(name, 0)
    assert most <= lowered.memory.device if loose else most == lowered.memory.device


class ForgetsBuffers(PrimePar):
    """PrimePar whose formula counts no block that is on its way."""

    def held(self, M: Value, N: Value, K: Value, s: Value) -> Value:
        return 2 * (M * N + N * K + M * K) / s**2


def test_a_formula_that_forgets_the_buffers_is_refuted_with_a_side() -> None:
    report = verify_side(ForgetsBuffers(), (2,))
    assert [result.name for result in report.properties if result.verdict != "proved"] == ["memory"]
    assert report["memory"].counterexample == (
        "rank 0, instruction 16 (backward dI[0,1] += dO[0,0] * W[1,0]): expected at most 24 "
        "live elements in device memory, got 28: I[0,1] 4, O[0,0] 4, W[1,0] 4, W[1,1] 4 and 3 "
        "more: free one before, or allow more in memory"
    )


def test_a_bound_of_the_host_asks_for_no_sizes_on_the_device() -> None:
    stays: Json = {"op": "compute", "reads": ["big"], "accumulates": "sum"}
    ranks: list[Json] = [stays, {"op": "evict", "block": X}, {"op": "fetch", "block": X}]
    proved = bounded(ranks, memory={"host": 6}, initial=[["big", X]])["memory"]
    assert proved == ("proved", "at most 6 of 6 live elements in host memory; resident copies: x 1")
    assert bounded(ranks, memory={"host": 5}, initial=[["big", X]])["memory"][1] == (
        "rank 0, instruction 1 (evict x[1]): expected at most 5 live elements in host memory, "
        "got 6: x[1] 6: free one before, or allow more in memory"
    )
    assert bounded(ranks, memory={"device": 99}, initial=[["big", X]])["memory"][0] == "unknown"
