"""Transfers in chunks: the same step, proved and exact; wrong ones are in `test_mutants`."""

from __future__ import annotations

import pytest
from lowered_steps import lower_step
from msgspec.structs import replace
from pass_cases import count, raises_no_peak, refuted, step
from phase_programs import Json, built, compute
from phase_programs import program as program_of
from pipelined_plans import pipelined
from profiles import few, long
from step_cases import BATCH, POSITIONS, SMALL

from primepar.operators import StepOptions, Until
from primepar.passes import PASSES, apply, chunk_transfers, overlap
from primepar.passes.chunk_transfers import HidingWork, SiteFinder, TransferPair, refined
from primepar.passes.program_tables import Tables
from primepar.plan import Plan, preset_plan
from primepar.reference.check import check_program
from primepar.reference.emulator import model
from primepar.schedule import Program
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Compute,
    IRecv,
    ISend,
    ReduceScatter,
    Wait,
)

LATER = ("make-late", "needed-first", "partial-sums", "overlap")


def merged(name: str, ranks: int = 4, family: str = "gpt2") -> Program:
    """The step before transfers are cut."""
    return step(name, ranks, family, *LATER)


@few
@pytest.mark.parametrize(
    ("family", "name", "ranks", "chunks"),
    [
        ("llama", "megatron", 4, 3), ("gpt2", "megatron", 4, 20), ("llama", "megatron-sp", 2, 1),
        ("gpt2", "megatron-sp", 2, 5), ("llama", "M2,megatron", 4, 2),
        ("llama", "M2,megatron-sp", 8, 2), ("gpt2", "megatron-sp", 4, 2),
    ],
)  # fmt: skip
def test_steps_in_chunks_are_proved_and_exact(
    family: str, name: str, ranks: int, chunks: int
) -> None:
    given = merged(name, ranks, family)
    made = chunk_transfers(given, chunks)
    assert made.programs != given.programs
    for program in (made, overlap(made)):
        assert refuted(program) == set()
        report = check_program(program)
        assert report.equal, report.message
    assert report.sent == check_program(given).sent
    assert raises_no_peak(given, overlap(made))


@pytest.mark.parametrize(
    ("schedule", "within"),
    [("1f1b", "megatron-sp"), pytest.param("zbv", "megatron", marks=long)],
)
def test_every_micro_batch_of_a_pipeline_is_cut(schedule: str, within: str) -> None:
    plan = pipelined(schedule, within, 4)
    assert plan.batch is not None
    whole, made = (
        lower_step(plan, plan.batch, 4, options=StepOptions(chunks=chunks)) for chunks in (None, 2)
    )
    assert count(made, Compute) > count(whole, Compute)
    assert refuted(made) == set()
    assert check_program(made).equal


@few
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
    given = merged("megatron")
    made = overlap(chunk_transfers(given, 2))
    cut = ("proj.forward", "fc2.forward", "fc1.backward", "qkv.backward")
    for name in cut:
        phase, nodes = f"blocks.0.{name}", made.programs[1]
        first, second = [place for place, node in enumerate(nodes)
                         if isinstance(node, Compute) and node.phase == phase]  # fmt: skip
        result = nodes[first]
        assert isinstance(result, Compute)
        (posted,) = [node for node in nodes[first:second] if isinstance(node, AllReduce)]
        assert posted.block == result.accumulates
        assert nodes.index(Wait(str(posted.request))) > second
        assert made.grid is not None
        assert made.grid[phase]["M"] == 2
    assert count(made, AllReduce) == count(given, AllReduce) + len((*cut, "head.backward"))


def test_gathers_become_rings_that_begin_with_the_own_part() -> None:
    given = merged("megatron-sp")
    made = chunk_transfers(given, 2)
    assert (count(given, AllGather), count(made, AllGather)) == (8, 0)
    for kind in (ISend, IRecv):
        assert count(made, kind) == count(given, kind) + 8 * 3 * 2
    assert count(made, ReduceScatter) == count(given, ReduceScatter) + 5
    for rank, nodes in enumerate(made.programs):
        order = [
            (node.sub_operator or {})["M"]
            for node in nodes
            if isinstance(node, Compute) and node.phase == "blocks.0.fc1.forward"
        ]
        assert order == [2 * ((rank + step) % 4) + chunk for step in range(4) for chunk in range(2)]
        operator = "blocks.0.fc1 forward"
        peers = {node.peer for node in nodes
                 if isinstance(node, ISend) and node.request.startswith(operator)}  # fmt: skip
        assert peers == {(rank - 1) % 4}


def pairs_of(given: Program) -> dict[str, TransferPair]:
    """Every pair of a program, which is asked for once, by its phase."""
    pairs: list[TransferPair] = []

    def none(pair: TransferPair) -> int:
        pairs.append(pair)
        return 0

    assert chunk_transfers(given, none) is given
    by_phase = {pair.phase: pair for pair in pairs}
    assert len(by_phase) == len(pairs)
    return by_phase


def test_every_pair_is_described_with_what_can_hide_it() -> None:
    """A reduction: until something waits. A gather: until the gather of another product.

    The reduction of dI may wait, as it is needed after dW.
    """
    config = SMALL["gpt2"]
    rows, hidden, inner, ranks = BATCH * POSITIONS, config.hidden, config.ffn // 4, (0, 1, 2, 3)
    operands, results = rows * hidden, rows * inner
    product = operands + results + hidden * inner
    pairs = pairs_of(merged("megatron-sp"))
    assert len(pairs) == 13
    assert pairs["blocks.0.fc1.forward"] == TransferPair(
        "blocks.0.fc1.forward", "all_gather", ranks, (operands, hidden * inner), results, True,
        rows // 4,
    )  # fmt: skip
    # The weight is cut, which has the columns of the result.
    assert pairs["blocks.0.fc2.forward"] == TransferPair(
        "blocks.0.fc2.forward", "reduce_scatter", ranks, (inner * hidden, results), operands, True,
        hidden,
    )  # fmt: skip
    # Backward of fc2, its gradient and backward of fc1; backward of act; the gradient of the bias.
    earlier = HidingWork(
        5, 3 * product + 3 * results + results + inner, 3 * 2 * rows * hidden * inner
    )
    assert pairs["blocks.0.fc1.gradient"] == TransferPair(
        "blocks.0.fc1.gradient", "all_gather", ranks, (operands, results), hidden * inner, False,
        rows // 4, earlier,
    )  # fmt: skip
    pairs = pairs_of(merged("megatron"))
    assert pairs["blocks.0.fc2.forward"].later == HidingWork()
    assert pairs["blocks.0.fc1.backward"].later == HidingWork(1, product, 2 * rows * hidden * inner)


@pytest.mark.parametrize("name", ["data", "primepar", "summa", "tesseract"])
def test_what_has_no_such_pair_stays_as_it_is(name: str) -> None:
    given = merged(name)
    assert refuted(chunk_transfers(given, 2)) == set()
    assert name == "tesseract" or chunk_transfers(given, 2) is given


def test_one_chunk_of_a_reduction_is_the_whole() -> None:
    given = merged("megatron")
    assert chunk_transfers(given, 1) is given
    assert apply(given, PASSES, chunks=None) == apply(given)


def test_slices_are_cut_as_equally_as_they_can_be() -> None:
    assert refined((0, 4, 8), 2) == (0, 2, 4, 6, 8)
    assert refined((0, 5, 10), 3) == (0, 1, 3, 5, 6, 8, 10)
    assert refined((0, 7), 1) == (0, 7)


# Which products are found


def two_reductions(order: tuple[str, str]) -> Program:
    """Two ranks that reduce f and g; rank 1 calls for the products in the given order."""
    phases = {
        name: {"reads": ["a[M,N]", "w[N,K]"], "writes": f"{name}[M,K]", "kernel": "linear.forward"}
        for name in "fg"
    }
    tensors: Json = {name: {"cuts": [[0, 4], [0, 2]]} for name in "fg"}
    tensors |= {"a": {"cuts": [[0, 4], [0, 2, 4]]}, "w": {"cuts": [[0, 2, 4], [0, 2]]}}
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


def found(given: Program) -> dict[str, list[int]]:
    """Phase -> the positions of its products next to transfers."""
    return {
        phase: [site.product for site in sites]
        for phase, sites in SiteFinder(Tables(given)).sites()
    }


def test_calls_that_do_not_match_are_not_cut() -> None:
    right, wrong = two_reductions(("f", "g")), two_reductions(("g", "f"))
    assert found(right) == {"f": [0, 0], "g": [2, 2]}
    assert refuted(chunk_transfers(right, 2)) == set()
    assert chunk_transfers(right, 2) is not right
    assert chunk_transfers(wrong, 2) is wrong


def test_a_result_that_is_used_before_its_reduction_is_not_cut() -> None:
    given = two_reductions(("f", "g"))
    first, *rest = given.programs[0]
    used = Compute(("f[0,0]",), "copy")
    made = replace(given, programs=((first, used, *rest), given.programs[1]))
    assert found(made) == {"g": [3, 2]}


def test_a_program_may_end_with_a_product() -> None:
    given = two_reductions(("f", "g"))
    cut = replace(given, programs=tuple(nodes[:-1] for nodes in given.programs))
    assert found(cut) == {"f": [0, 0]}
