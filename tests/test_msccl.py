"""MSCCL algorithms as programs of thread blocks, with waits and memory that they share."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from attack_msccl import ThreadedRun, verdict
from msccl_cases import (
    ALGORITHMS,
    AlgorithmText,
    BlockText,
    StepText,
    ring_all_gather,
    ring_all_reduce,
)

from primepar.errors import FormatError, ThreadRaceError
from primepar.preflight.importers import XML_SLOTS, read_program
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program
from primepar.verify.report import Report


def report_of(algorithm: AlgorithmText, folder: Path, slots: int = XML_SLOTS) -> Report:
    """The proof of an algorithm."""
    path = folder / "mine.xml"
    path.write_text(algorithm.text())
    return verify_program(read_program(path), transport=Transport(slots))


def with_step(
    algorithm: AlgorithmText, gpu: int, block: int, place: int, step: StepText
) -> AlgorithmText:
    """The algorithm with another step in one place."""
    gpus = [[replace(b, steps=list(b.steps)) for b in blocks] for blocks in algorithm.gpus]
    gpus[gpu][block].steps[place] = step
    return replace(algorithm, gpus=gpus)


@pytest.mark.parametrize("number", range(len(ALGORITHMS)))
def test_right_algorithms_are_proved_with_their_sums(tmp_path: Path, number: int) -> None:
    report = report_of(ALGORITHMS[number], tmp_path)
    assert report.verdict == "proved"
    assert report["completion"].verdict == "proved"


def test_a_ring_needs_a_slot(tmp_path: Path) -> None:
    """A finite capacity: all send first, so that without a slot each waits for the next."""
    report = report_of(ring_all_reduce(3), tmp_path, slots=0)
    assert report["deadlock-freedom"].verdict == "refuted"


def test_a_summand_that_is_left_out_is_refuted(tmp_path: Path) -> None:
    ring = ring_all_reduce(3)
    step = ring.gpus[1][0].steps[1]
    assert step.kind == "rrs"
    report = report_of(with_step(ring, 1, 0, 1, replace(step, kind="rcs")), tmp_path)
    assert report["completion"].verdict == "refuted"
    assert "y[0]" in str(report["completion"].counterexample)


def test_a_wait_across_thread_blocks_is_needed(tmp_path: Path) -> None:
    """Without its dependency a thread block sends a chunk that another one may not have yet."""
    gather = ring_all_gather(3)
    step = gather.gpus[1][1].steps[1]
    assert step.after == (0, 0)
    with pytest.raises(ThreadRaceError) as raised:
        report_of(with_step(gather, 1, 1, 1, replace(step, after=(-1, -1))), tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}/mine.xml: gpu 1, tb 0, step 0: expected an order of it and tb 1, step 1, "
        "which access o0 of gpu 1, got none: give one of them a dependency on the other"
    )
    assert raised.value.exit_code == 1


def test_a_race_of_another_collective_is_found_too(tmp_path: Path) -> None:
    blocks = [BlockText(-1, -1, [StepText("cpy", ("i", 0), ("o", 0))]) for _ in range(2)]
    with pytest.raises(ThreadRaceError, match="tb 0, step 0: expected an order of it and tb 1, "):
        report_of(AlgorithmText("custom", 0, 1, 1, [blocks]), tmp_path)


def test_thread_blocks_that_wait_for_one_another_hang(tmp_path: Path) -> None:
    """Each first step waits for the second one of the other thread block."""
    blocks = [
        BlockText(-1, -1, [StepText("nop", after=(1 - number, 1)), StepText("nop")])
        for number in range(2)
    ]
    algorithm = AlgorithmText("custom", 0, 1, 1, [blocks])
    report = report_of(algorithm, tmp_path)
    assert report["deadlock-freedom"].verdict == "refuted"
    assert "gpu 0, tb 0, step 0" in str(report["deadlock-freedom"].counterexample)


@pytest.mark.parametrize("change", ["none", "dependency", "chunk"])
def test_runs_of_threads_agree(tmp_path: Path, change: str) -> None:
    algorithm = ring_all_gather(3)
    step = algorithm.gpus[0][1].steps[1]
    if change == "dependency":
        algorithm = with_step(algorithm, 0, 1, 1, replace(step, after=(-1, -1)))
    if change == "chunk":
        algorithm = with_step(algorithm, 0, 1, 1, replace(step, source=("o", 1)))
    ends = [ThreadedRun(algorithm, 1, False).ends_right(random.Random(n)) for n in range(30)]
    assert all(ends) == (verdict(algorithm, tmp_path) == "proved") == (change == "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<algo", "expected an MSCCL algorithm, got unclosed token: line 1, column 0"),
        ("<plan/>", "expected an element <algo>, got <plan>"),
        ("<algo/>", "expected GPUs 0, 1, ... in order, got none"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><algo/>',
         "expected an MSCCL algorithm, got XML with a document type"),
        ('<algo><gpu id="0" i_chunks="x" o_chunks="1"/></algo>',
         "gpu 0: expected i_chunks to be an integer, got 'x'"),
        ('<algo><gpu id="0" i_chunks="1" o_chunks="1"><tb id="0"><step s="0" type="x"/></tb></gpu>'
         "</algo>",
         "gpu 0, tb 0, step 0: expected a type out of cpy, nop, r, rcs, re, rrc, rrcs, rrs, s, got "
         "'x'"),
        ('<algo><gpu id="0" i_chunks="1" o_chunks="1"><tb id="0" send="1"><step s="0" type="s"/>'
         "</tb></gpu></algo>",
         "gpu 0, tb 0, step 0: expected a thread block of gpu 1 that receives from gpu 0 on "
         "channel -1, got none"),
    ],
)  # fmt: skip
def test_other_files_end_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.xml"
    path.write_text(text)
    with pytest.raises(FormatError) as raised:
        read_program(path)
    assert str(raised.value) == f"{path}: {message}"
