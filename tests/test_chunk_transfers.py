"""Transfers in chunks: the same step, proved and exact; a broken cut is refuted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from lowered_steps import lower_step
from msgspec.structs import replace
from partitioned_cases import PRESET_MESHES
from phase_programs import Json, built, compute
from phase_programs import program as program_of
from pipelined_plans import pipelined
from step_cases import BATCH, POSITIONS, SMALL

from primepar.operators import StepOptions, Until
from primepar.passes import PASSES, apply, chunk_transfers, overlap
from primepar.passes.chunk_rewrites import GatherRewrite, ReductionRewrite, refined
from primepar.passes.chunk_sites import SiteFinder
from primepar.passes.chunk_transfers import TransferPair
from primepar.passes.chunk_sites import HidingWork
from primepar.passes.liveness import peaks
from primepar.passes.program_tables import Tables
from primepar.plan import Plan, preset_plan
from primepar.reference.check import check_program
from primepar.reference.emulator import model
from primepar.schedule import Program
from primepar.schedule.program import (
    AllReduce,
    Compute,
    Free,
    Instruction,
    IRecv,
    ISend,
    ReduceScatter,
    Wait,
)
from primepar.verify import verify_program

BEFORE = ("free-early", "merge-products", "merge-collectives", "coalesce-reductions")


def merged(name: str, ranks: int, family: str) -> Program:
    """The step before transfers are cut."""
    plan = preset_plan(name, SMALL[family], ranks)
    return lower_step(plan, BATCH, POSITIONS, passes=BEFORE)


def kinds(program: Program, rank: int = 0) -> Counter[str]:
    return Counter(type(node).__name__ for node in program.programs[rank])


@pytest.mark.parametrize(
    ("family", "name", "ranks", "chunks"),
    [
        ("gpt2", "megatron", 2, 2), ("llama", "megatron", 4, 3), ("gpt2", "megatron", 4, 20),
        ("llama", "megatron-sp", 2, 1), ("gpt2", "megatron-sp", 2, 5),
        ("gpt2", "megatron-sp", 4, 1),
        ("gpt2", "megatron-sp", 4, 2), ("llama", "megatron-sp", 4, 2),
        ("llama", "M2,megatron", 4, 2),
        ("llama", "M2,megatron-sp", 8, 2),
    ],
)  # fmt: skip
def test_steps_in_chunks_are_proved_and_exact(
    family: str, name: str, ranks: int, chunks: int
) -> None:
    given = merged(name, ranks, family)
    made = chunk_transfers(given, chunks)
    assert made.programs != given.programs
    for program in (made, overlap(made)):
        assert verify_program(program).verdict == "proved"
        report = check_program(program)
        assert report.equal, report.message
    assert report.sent == check_program(given).sent
    assert all(map(int.__le__, peaks(overlap(made)), peaks(given)))


@pytest.mark.parametrize(("schedule", "within"), [("1f1b", "megatron-sp"), ("zbv", "megatron")])
def test_every_micro_batch_of_a_pipeline_is_cut(schedule: str, within: str) -> None:
    plan = pipelined(schedule, within, 4)
    assert plan.batch is not None
    whole, made = (
        lower_step(plan, plan.batch, 4, options=StepOptions(chunks=chunks)) for chunks in (None, 2)
    )
    assert kinds(made)["Compute"] > kinds(whole)["Compute"]
    assert verify_program(made).verdict == "proved"
    assert check_program(made).equal


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["megatron", "megatron-sp"])
def test_losses_and_gradients_are_those_of_the_dense_transformer(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_chunks(plan: Plan, batch: int, positions: int, until: Until, *_: object) -> Program:
        return lower_step(plan, batch, positions, until, StepOptions(chunks=2))

    monkeypatch.setattr(model, "lower_step", in_chunks)
    plan = preset_plan(name, SMALL[family], 4)
    difference, _ = model.step_difference(plan, BATCH, POSITIONS)
    assert difference < 1e-10


def test_reductions_are_cut_and_posted_between_products() -> None:
    given = merged("megatron", 4, "gpt2")
    made = overlap(chunk_transfers(given, 2))
    cut = ("proj.forward", "fc2.forward", "fc1.backward", "qkv.backward")
    for name in cut:
        phase = f"blocks.0.{name}"
        nodes = made.programs[1]
        products = [place for place, node in enumerate(nodes)
                    if isinstance(node, Compute) and node.phase == phase]  # fmt: skip
        first, second = products
        result = nodes[first]
        assert isinstance(result, Compute)
        (posted,) = [node for node in nodes[first:second] if isinstance(node, AllReduce)]
        assert posted.block == result.accumulates
        assert nodes.index(Wait(str(posted.request))) > second
        assert made.grid is not None
        assert made.grid[phase]["M"] == 2
    assert kinds(made)["AllReduce"] == kinds(given)["AllReduce"] + len((*cut, "head.backward"))


def test_gathers_become_rings_that_begin_with_the_own_part() -> None:
    given = merged("megatron-sp", 4, "gpt2")
    made = chunk_transfers(given, 2)
    assert kinds(given)["AllGather"] == 8
    assert kinds(made)["AllGather"] == 0
    for kind in ("ISend", "IRecv"):
        assert kinds(made)[kind] == kinds(given)[kind] + 8 * 3 * 2
    assert kinds(made)["ReduceScatter"] == kinds(given)["ReduceScatter"] + 5
    for rank, nodes in enumerate(made.programs):
        products = [node for node in nodes if isinstance(node, Compute)]
        order = [
            (node.sub_operator or {})["M"]
            for node in products
            if node.phase == "blocks.0.fc1.forward"
        ]
        assert order == [2 * ((rank + step) % 4) + chunk for step in range(4) for chunk in range(2)]
        operator = "blocks.0.fc1 forward"
        peers = {node.peer for node in nodes
                 if isinstance(node, ISend) and node.request.startswith(operator)}  # fmt: skip
        assert peers == {(rank - 1) % 4}


def test_every_pair_is_described_once() -> None:
    pairs: list[TransferPair] = []

    def count(pair: TransferPair) -> int:
        pairs.append(pair)
        return 0

    given = merged("megatron-sp", 4, "gpt2")
    assert chunk_transfers(given, count) is given
    config = SMALL["gpt2"]
    rows, hidden, inner = BATCH * POSITIONS, config.hidden, config.ffn
    by_phase = {pair.phase: pair for pair in pairs}
    assert len(by_phase) == len(pairs) == 13
    ranks = (0, 1, 2, 3)
    assert by_phase["blocks.0.fc1.forward"] == TransferPair(
        "blocks.0.fc1.forward", "all_gather", ranks,
        (rows * hidden, hidden * inner // 4), rows * inner // 4, True, rows // 4,
    )  # fmt: skip
    # The weight is cut, which has the columns of the result.
    assert by_phase["blocks.0.fc2.forward"] == TransferPair(
        "blocks.0.fc2.forward", "reduce_scatter", ranks,
        (inner // 4 * hidden, rows * inner // 4), rows * hidden, True, hidden,
    )  # fmt: skip
    assert by_phase["blocks.0.fc1.gradient"] == TransferPair(
        "blocks.0.fc1.gradient", "all_gather", ranks,
        (rows * hidden, rows * inner // 4), hidden * inner // 4, False, rows // 4,
        by_phase["blocks.0.fc1.gradient"].earlier,
    )  # fmt: skip


def test_later_work_is_counted_until_something_waits() -> None:
    pairs: dict[str, TransferPair] = {}

    def count(pair: TransferPair) -> int:
        pairs[pair.phase] = pair
        return 0

    chunk_transfers(merged("megatron", 4, "gpt2"), count)
    config = SMALL["gpt2"]
    rows, hidden, inner = BATCH * POSITIONS, config.hidden, config.ffn // 4
    assert pairs["blocks.0.fc2.forward"].later == HidingWork()
    assert pairs["blocks.0.fc1.backward"].later == HidingWork(
        1, rows * hidden + rows * inner + hidden * inner, 2 * rows * hidden * inner
    )


def test_earlier_work_is_counted_until_the_gather_of_another_product() -> None:
    """The reduction of dI may wait: it is needed after dW."""
    pairs: dict[str, TransferPair] = {}

    def count(pair: TransferPair) -> int:
        pairs[pair.phase] = pair
        return 0

    chunk_transfers(merged("megatron-sp", 4, "gpt2"), count)
    config = SMALL["gpt2"]
    rows, hidden, inner = BATCH * POSITIONS, config.hidden, config.ffn // 4
    assert pairs["blocks.0.fc1.forward"].earlier == HidingWork()
    # Backward of fc2, its gradient and backward of fc1; backward of act; the gradient of the bias.
    products = 3 * (rows * hidden + rows * inner + hidden * inner)
    others = 3 * rows * inner + rows * inner + inner
    assert pairs["blocks.0.fc1.gradient"].earlier == HidingWork(
        5, products + others, 3 * 2 * rows * hidden * inner
    )


def test_what_has_no_such_pair_stays_as_it_is() -> None:
    for name, ranks in PRESET_MESHES:
        if "megatron" not in name and ranks <= 4:
            given = merged(name, ranks, "gpt2")
            assert verify_program(chunk_transfers(given, 2)).verdict == "proved"
    for name in ("data", "primepar", "summa"):
        given = merged(name, 4, "gpt2")
        assert chunk_transfers(given, 2) is given
    given = merged("megatron", 4, "gpt2")
    assert chunk_transfers(given, 1) is given
    assert apply(given, PASSES, chunks=None) == apply(given)


def test_slices_are_cut_as_equally_as_they_can_be() -> None:
    assert refined((0, 4, 8), 2) == (0, 2, 4, 6, 8)
    assert refined((0, 5, 10), 3) == (0, 1, 3, 5, 6, 8, 10)
    assert refined((0, 7), 1) == (0, 7)


# Broken on purpose


def broken(
    name: str, change: Callable[[list[Instruction]], list[Instruction]], kind: Any
) -> Callable[[pytest.MonkeyPatch], Program]:
    """The step with a rewrite whose instructions at the product are changed."""

    def make(patch: pytest.MonkeyPatch) -> Program:
        real = kind.edits

        def edits(self: Any) -> dict[int, list[Instruction]]:
            made = real(self)
            return {**made, self.site.product: change(made[self.site.product])}

        patch.setattr(kind, "edits", edits)
        return chunk_transfers(merged(name, 4, "gpt2"), 2)

    return make


def without(kind: type[Instruction], number: int) -> Callable[[list[Instruction]], Any]:
    """Without the n-th instruction of a kind."""

    def change(nodes: list[Instruction]) -> list[Instruction]:
        place = [place for place, node in enumerate(nodes) if isinstance(node, kind)][number]
        return [*nodes[:place], *nodes[place + 1 :]]

    return change


def twice(nodes: list[Instruction]) -> list[Instruction]:
    place = next(place for place, node in enumerate(nodes) if isinstance(node, Compute))
    return [*nodes[: place + 1], *nodes[place:]]


def early_wait_left_out(nodes: list[Instruction]) -> list[Instruction]:
    """The first wait comes last of the waits: a product does not wait for its chunk."""
    waits = [place for place, node in enumerate(nodes) if isinstance(node, Wait)]
    wait = nodes[waits[0]]
    rest = [node for node in nodes if node is not wait]
    return [*rest[: waits[-1]], wait, *rest[waits[-1] :]]


def early_free(nodes: list[Instruction]) -> list[Instruction]:
    place = next(place for place, node in enumerate(nodes) if isinstance(node, ReduceScatter))
    free = next(node for node in nodes[place:] if isinstance(node, Free))
    rest = [node for node in nodes if node is not free]
    return [*rest[:place], free, *rest[place:]]


def products_exchanged(nodes: list[Instruction]) -> list[Instruction]:
    """Every chunk is still multiplied once, the first and the last in each other's place."""
    places = [place for place, node in enumerate(nodes) if isinstance(node, Compute)]
    nodes = list(nodes)
    nodes[places[0]], nodes[places[-1]] = nodes[places[-1]], nodes[places[0]]
    return nodes


BROKEN = {
    "a product before the signal of its chunk": broken(
        "megatron-sp", early_wait_left_out, GatherRewrite
    ),
    "a missing signal": broken("megatron-sp", without(ISend, 3), GatherRewrite),
    "another order that covers": broken("megatron-sp", products_exchanged, GatherRewrite),
    "a chunk twice": broken("megatron-sp", twice, GatherRewrite),
    "a chunk left out": broken("megatron-sp", without(Compute, -1), GatherRewrite),
    "a receive left out": broken("megatron-sp", without(IRecv, 0), GatherRewrite),
    "a part freed early": broken("megatron-sp", early_free, ReductionRewrite),
    "a chunk that is not scattered": broken(
        "megatron-sp", without(ReduceScatter, 0), ReductionRewrite
    ),
    "a chunk that is not reduced": broken("megatron", without(AllReduce, 0), ReductionRewrite),
    "a product of a reduction twice": broken("megatron", twice, ReductionRewrite),
    "a product after its reduction": broken("megatron", products_exchanged, ReductionRewrite),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_chunks_are_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_program(BROKEN[name](monkeypatch)).verdict == "refuted"


def sends_first(nodes: list[Instruction]) -> list[Instruction]:
    """Every send is posted before the receive that it is posted with."""
    nodes = list(nodes)
    for place, node in enumerate(nodes[:-1]):
        if isinstance(node, IRecv):
            nodes[place : place + 2] = [nodes[place + 1], node]
    return nodes


def test_not_every_change_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("megatron-sp", sends_first, GatherRewrite)(monkeypatch)
    first = next(node for node in made.programs[0] if isinstance(node, ISend | IRecv))
    assert isinstance(first, ISend)
    assert verify_program(made).verdict == "proved"


def exchanged(order: tuple[str, str]) -> Program:
    """Two ranks that reduce f and g; rank 1 calls for the products in the given order."""
    phases = {
        name: {"reads": ["a[M,N]", "w[N,K]"], "writes": f"{name}[M,K]", "kernel": "linear.forward"}
        for name in ("f", "g")
    }
    tensors: Json = {
        "a": {"cuts": [[0, 4], [0, 2, 4]]},
        "w": {"cuts": [[0, 2, 4], [0, 2]]},
        "f": {"cuts": [[0, 4], [0, 2]]},
        "g": {"cuts": [[0, 4], [0, 2]]},
    }
    lists: list[list[Json]] = []
    for rank in (0, 1):
        nodes: list[Json] = []
        for name in order if rank else ("f", "g"):
            reads = [f"a[0,{rank}]", f"w[{rank},0]"]
            nodes.append(compute(name, reads, f"{name}[0,0]", M=0, N=rank, K=0))
            nodes.append({"op": "all_reduce", "group": [0, 1], "block": f"{name}[0,0]"})
        lists.append(nodes)
    grid = {name: {"M": 1, "N": 2, "K": 1} for name in phases}
    initial = [[f"a[0,{rank}]", f"w[{rank},0]"] for rank in (0, 1)]
    final = [["f[0,0]", "g[0,0]"]] * 2
    return built(program_of(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                            final=final))  # fmt: skip


def test_calls_that_do_not_match_are_not_cut() -> None:
    right, wrong = exchanged(("f", "g")), exchanged(("g", "f"))
    assert verify_program(chunk_transfers(right, 2)).verdict == "proved"
    assert chunk_transfers(right, 2) is not right
    assert chunk_transfers(wrong, 2) is wrong


def test_a_result_that_is_used_before_its_reduction_is_not_cut() -> None:
    given = exchanged(("f", "g"))
    first, *rest = given.programs[0]
    used = Compute(("f[0,0]",), "copy")
    made = replace(given, programs=((first, used, *rest), given.programs[1]))
    phases = dict(SiteFinder(Tables(made)).sites())
    assert phases.keys() == {"g"}


def test_sites_name_their_positions() -> None:
    given = exchanged(("f", "g"))
    phases = dict(SiteFinder(Tables(given)).sites())
    assert [[site.product for site in of_rank] for of_rank in phases["g"]] == [[2], [2]]
