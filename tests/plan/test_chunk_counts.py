"""The number of chunks: the predicted time against the simulator, and what wrong input prints."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from command import EXAMPLE, example, run
from msgspec.structs import replace

import primepar
from benchmarks.overlap import choice_rows, pictures, steps
from benchmarks.transfer_pairs import DTYPE, MOST, PairCase, chosen, generated
from primepar.distributed.training.settings import Settings
from primepar.errors import ConfigError
from primepar.models import load_config
from primepar.passes import chunk_transfers, overlap
from primepar.passes.chunk_transfers import HidingWork, TransferPair
from primepar.plan import preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.chunks import best_count, counts, pair_seconds
from primepar.plan.simulator.run import simulate
from primepar.schedule.program import Compute
from primepar.schedule.signature import Signature, Tensor
from primepar.verify import verify_program

CONFIG = Path(example(1))
IMAGES = EXAMPLE.parents[1] / "images"
CURVES = load_cluster("h200-8")
H200 = replace(
    CURVES,
    rates={DTYPE: replace(CURVES.rate(DTYPE), products=None, attention=None)},
    links=(replace(CURVES.links[0], curves={}),),
)
"""The cluster with straight lines alone."""
RATE, BANDWIDTH = H200.rate(DTYPE).achieved, H200.links[0].bandwidth
STEP = ("simulate", "megatron-sp", "--model", str(CONFIG), "--devices", "4", "--cluster", "h200-8")


def test_the_predicted_time_is_the_simulated_one_and_the_choice_the_fastest() -> None:
    choices = [chosen(case) for case in generated(6, seed=4)]
    for choice in choices:
        pair = choice.case.pair()
        for chunks, seconds in choice.seconds.items():
            predicted = pair_seconds(pair, chunks, choice.case.cluster, DTYPE)
            assert abs(predicted / seconds - 1) < 1e-9
        assert choice.ratio(choice.chosen) < 1 + 1e-9
    assert [(row.transfer, row.pairs, row.fastest) for row in choice_rows(choices)] == [
        ("all_gather", 2, 2), ("all_reduce", 2, 2), ("reduce_scatter", 2, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("case", list(generated(3, seed=7)), ids=lambda case: case.transfer)
def test_the_predicted_time_by_curves_is_the_simulated_one(case: PairCase) -> None:
    """Also where each message of a port after the first takes a gap, as those of a ring do."""
    gaps = replace(CURVES, links=(replace(CURVES.links[0], gap=1e-5),))
    for chunks in (0, 1, 4) if case.transfer == "all_gather" else (0, 2, 4):
        measured = dataclasses.replace(case, cluster=gaps if chunks == 4 else CURVES)
        predicted = pair_seconds(measured.pair(), chunks, measured.cluster, DTYPE)
        assert predicted == pytest.approx(float(measured.run(chunks).seconds), rel=1e-9)


@pytest.mark.parametrize("case", list(generated(3, seed=5)), ids=lambda case: case.transfer)
def test_generated_pairs_are_proved_whole_and_in_chunks(case: PairCase) -> None:
    small = replace_sizes(case)
    for program in (small.program(), chunk_transfers(small.program(), 2)):
        assert verify_program(program).verdict == "proved"


def replace_sizes(case: PairCase) -> PairCase:
    return PairCase(case.transfer, case.devices, 8 * case.devices, 4, 4, case.cluster)


PAIR = TransferPair(
    "fc2.forward", "all_reduce", tuple(range(8)), (8192 * 2048, 2048 * 4096), 8192 * 4096, True, 24
)


def test_the_divisors_of_a_part_are_compared() -> None:
    assert list(counts(PAIR)) == [0, 2, 3, 4, 6, 8, 12, 24]
    assert list(counts(PAIR._replace(transfer="all_gather", most=3))) == [0, 1, 3]
    assert max(counts(PAIR._replace(most=2**20))) == 64 > MOST


def test_nothing_is_cut_where_it_does_not_pay() -> None:
    alone = replace(H200, overlap=False)
    assert best_count(PAIR, H200, DTYPE) > 0
    assert best_count(PAIR, CURVES, DTYPE) > 0
    assert best_count(PAIR, alone, DTYPE) == 0
    assert best_count(PAIR, replace(H200, launch=1e-3), DTYPE) == 0
    hidden = PAIR._replace(later=HidingWork(1, 0, 10**13))
    assert best_count(hidden, H200, DTYPE) == 0


def test_work_before_a_gather_hides_it_whole() -> None:
    gather = PAIR._replace(transfer="all_gather", most=8)
    assert best_count(gather, H200, DTYPE) == 1
    hidden = gather._replace(earlier=HidingWork(1, 0, 10**13))
    assert best_count(hidden, H200, DTYPE) == 0
    earlier = 5e-6 + 10**13 / RATE
    bytes_of_blocks = 2 * (8192 * 2048 + 2048 * 4096 + 8192 * 4096)
    passing = 5e-6 + bytes_of_blocks / H200.memory_bandwidth
    product = passing + 2 * 8192 * 2048 * 4096 / RATE
    assert pair_seconds(hidden, 0, H200, DTYPE) == pytest.approx(earlier + product)


@pytest.mark.parametrize("case", list(generated(7, seed=6))[::3], ids=lambda case: case.devices)
def test_the_predicted_time_with_earlier_work_is_the_simulated_one(case: PairCase) -> None:
    given = case.program()
    product = Compute(("b[0,0]", "b[0,0]"), "c[0,0]", "earlier.forward", {"U": 0, "V": 0, "W": 0})
    square = Tensor(((0, 1024), (0, 1024)))
    template = Signature(("b[U,V]", "b[V,W]"), "c[U,W]", kernel="linear.forward")
    program = replace(
        given,
        programs=tuple((*nodes[:2], product, *nodes[2:]) for nodes in given.programs),
        grid={**(given.grid or {}), "earlier.forward": {"U": 1, "V": 1, "W": 1}},
        phases={**(given.phases or {}), "earlier.forward": template},
        tensors={**(given.tensors or {}), "b": square, "c": square},
        initial=tuple((*blocks, "b[0,0]") for blocks in given.initial or ()),
        final=tuple((*blocks, "c[0,0]") for blocks in given.final or ()),
    )
    pairs: list[TransferPair] = []

    def whole(pair: TransferPair) -> int:
        pairs.append(pair)
        return 0

    assert chunk_transfers(program, whole) is program
    (pair,) = pairs
    assert pair.earlier == HidingWork(1, 3 * 1024**2, 2 * 1024**3)
    for chunks in (0, 1, 2, 4):
        run = simulate(overlap(chunk_transfers(program, chunks or whole)), case.cluster, DTYPE)
        assert abs(pair_seconds(pair, chunks, case.cluster, DTYPE) / run.seconds - 1) < 1e-9


def test_the_seconds_of_a_reduction_by_hand() -> None:
    """Two chunks: a product each, then both reductions one after the other."""
    bytes_of_blocks = 2 * (8192 * 2048 / 2 + 2048 * 4096 + 8192 * 4096 / 2)
    product = 5e-6 + bytes_of_blocks / H200.memory_bandwidth + 8192 * 2048 * 4096 / RATE
    sent = 2 * 7 / 8 * 8192 * 4096 / 2 * 2 / BANDWIDTH
    assert pair_seconds(PAIR, 2, H200, DTYPE) == pytest.approx(product + 14 * 5e-6 + 2 * sent)


def test_auto_is_never_slower_than_whole_transfers_here() -> None:
    plan = preset_plan("megatron-sp", load_config(CONFIG), 4)
    whole = primepar.simulate(plan, "h200-8", batch=4)
    auto = primepar.simulate(plan, "h200-8", batch=4, chunks="auto")
    assert auto.seconds <= whole.seconds
    assert auto.sent == whole.sent


def test_the_command_prints_the_hidden_share() -> None:
    pattern = re.compile(r"^  transfers  .* per device, ([\d.]+)%", re.MULTILINE)
    shares = []
    for chunks in ((), ("--chunks", "2")):
        done = run(*STEP, *chunks)
        assert (done.code, done.err) == (0, "")
        match = pattern.search(done.out)
        assert match is not None
        shares.append(float(match[1]))
    assert shares[0] < shares[1]


@pytest.mark.parametrize("chunks", ["0", "-1", "65", "many", "2.5"])
def test_a_wrong_number_of_chunks_is_one_line(chunks: str) -> None:
    done = run(*STEP, f"--chunks={chunks}")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"primepar: error: --chunks: expected auto or a number from 1 to 64, got {chunks!r}: "
        "write --chunks auto\n"
    )


def test_chunks_are_for_the_step_of_a_plan() -> None:
    done = run("simulate", "flux-gather", "--cluster", "h200-8", "--chunks", "2")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "primepar: error: flux-gather: expected no --chunks, which only the training step of a "
        "plan has, got --chunks 2: leave it out\n"
    )
    plan = preset_plan("megatron", load_config(CONFIG), 2)
    text = "chunks: expected auto or a number from 1 to 64, got 0: write auto"
    with pytest.raises(ConfigError, match=rf"^{text}$"):
        primepar.simulate(plan, "h200-8", chunks=0)


def test_the_setting_of_a_run_is_checked() -> None:
    for chunks in (0, 65):
        done = run("train", "--set", f"parallelism.chunks={chunks}")
        where = f"--set parallelism.chunks={chunks}"
        text = f"{where}: expected an integer from 1 to 64, got '{chunks}'"
        assert (done.code, done.err) == (2, f"primepar: error: {text}\n")
    assert Settings(chunks=4).step_options(None).chunks == 4
    assert Settings().step_options(None).chunks is None


def test_the_benchmark_draws_and_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.overlap.DEVICES", 2)
    monkeypatch.setattr("benchmarks.overlap.CHUNKS", (None, "auto"))
    whole, auto = steps("megatron", load_config(CONFIG), load_cluster("h200-8"), 2)
    assert (whole.chunks, auto.chunks, whole.faster) == ("whole", "auto", 1.0)
    assert auto.faster == pytest.approx(whole.step / auto.step)
    assert pictures() == {name: (IMAGES / name).read_text() for name in
                          ("overlap-whole.svg", "overlap-chunks.svg")}  # fmt: skip
