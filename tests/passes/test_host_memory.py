"""Blocks that begin and end in host memory: every reader asks for them, in one sentence.

Wrong programs that keep their states there are in `test_mutants`, those of PatrickStar.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from agreement import disagreement
from oracle.explore import explore
from phase_programs import Json, built, compute, program

from primepar import check
from primepar.certify.program import certify_program
from primepar.errors import EmulationError
from primepar.schedule import Program, load_program
from primepar.schedule.program_file import program_json, program_text
from primepar.verify import verify_program
from primepar.verify.certificate.program import certificate

PHASES = {"double": {"reads": ["x[M]"], "writes": "y[M]"}}
TENSORS = {"x": {"cuts": [[0, 4, 8]]}, "y": {"cuts": [[0, 4, 8]]}}


def offloaded(*nodes: Json, **fields: Any) -> Json:
    """One rank that computes y[0] and y[1] of blocks that begin and end on its host."""
    steps: list[Json] = []
    for number in (0, 1):
        steps += [
            {"op": "fetch", "block": f"x[{number}]"},
            compute("double", [f"x[{number}]"], f"y[{number}]", M=number),
            {"op": "evict", "block": f"x[{number}]"},
            {"op": "evict", "block": f"y[{number}]"},
        ]
    given: Json = {
        "phases": PHASES, "tensors": TENSORS, "grid": {"double": {"M": 2}},
        "initial": [[]], "final": [[]], "host_initial": [["x[0]", "x[1]"]],
        "host_final": [["x[0]", "x[1]", "y[0]", "y[1]"]], "memory": {"device": 8, "host": 16},
    }  # fmt: skip
    return program([[*(nodes or steps)]], **{**given, **fields})


def steps() -> list[Json]:
    listed: list[Json] = offloaded()["programs"][0]
    return listed


def only_wrong(fields: Json) -> tuple[str, str]:
    """The property that is refuted, and its sentence; the other readers agree."""
    made = built(fields)
    report = verify_program(made)
    assert disagreement(report, explore(made)) == ""
    wrong = [known for known in report.properties if known.verdict == "refuted"]
    if wrong[0].name not in ("memory", "traffic"):
        given = certificate(made, report)
        certify_program(given, made)
        with pytest.raises(EmulationError):
            _emulated(made)
    return wrong[0].name, str(wrong[0].counterexample)


def _emulated(made: Program) -> None:
    report = check(made)
    if not report.equal:
        raise EmulationError(str(report.message))


def test_a_program_that_begins_and_ends_on_the_host_is_proved_exact_and_saved(
    tmp_path: Any,
) -> None:
    made = built(offloaded())
    report = verify_program(made)
    assert report.verdict == "proved"
    assert disagreement(report, explore(made)) == ""
    certify_program(certificate(made, report), made)
    assert check(made).equal
    path = tmp_path / "program.json"
    path.write_text(program_json(made))
    assert load_program(path) == made
    assert "  on host  x[0] x[1]\n" in program_text(made)


def test_a_block_that_the_host_does_not_have() -> None:
    assert only_wrong(offloaded(host_initial=[["x[1]"]])) == (
        "placement",
        "rank 0, instruction 0 (fetch x[0]): expected x[0] in this rank's host memory, got none "
        "there: evict it before",
    )


def test_a_block_that_is_not_fetched() -> None:
    report = verify_program(built(offloaded(*steps()[1:])))
    assert str(report["placement"].counterexample) == (
        "rank 0, instruction 0 (double y[0] += x[0]): expected x[0] in this rank's memory, got "
        "none there: fetch it from host memory before"
    )


def test_a_block_that_is_on_the_device_at_the_end_and_not_on_the_host() -> None:
    assert only_wrong(offloaded(*steps()[:-1])) == (
        "completion",
        "rank 0, host_final y[1]: expected the finished sum in host memory, got no such block "
        "there: evict it after its last use",
    )
    assert only_wrong(offloaded(*steps()[:6], steps()[7])) == (
        "alignment",
        "rank 0, host_final x[1]: expected it in host memory at the end, got it not there: evict "
        "it after its last use",
    )


def test_a_sum_that_is_not_finished_when_it_is_evicted() -> None:
    early = [*steps()[:4], {"op": "alloc", "block": "y[1]"}, {"op": "evict", "block": "y[1]"}]
    rest = [*steps()[4:7], {"op": "free", "block": "y[1]"}]
    name, sentence = only_wrong(offloaded(*early, *rest))
    assert name == "completion"
    assert sentence.startswith(
        "rank 0, host_final y[1]: expected double product (M=1) once, got it never: "
    )


def test_the_host_has_a_bound_from_its_first_blocks_on() -> None:
    name, sentence = only_wrong(offloaded(memory={"host": 7}))
    assert (name, sentence) == (
        "memory",
        "rank 0, before its first instruction: expected at most 7 live elements in host memory, "
        "got 8: x[0] 4, x[1] 4: free one before, or allow more in memory",
    )


def test_emulated_devices_keep_the_bound_of_the_program() -> None:
    assert check(built(offloaded(memory={"device": 8}))).equal
    report = check(built(offloaded(memory={"device": 7})))
    assert not report.equal
    assert report.message == (
        "device 0, programs[0][1], double: expected at most 7 live elements on this device, got 8 "
        "with y[0]: free or evict a block before, or allow more in memory"
    )
    assert check(built(offloaded(memory={"host": 16}))).equal
    assert check(built(offloaded(memory={"host": 15}))).message == (
        "device 0, programs[0][7]: expected at most 15 live elements on this device's "
        "host, got 16 with y[1]: fetch one before, or allow more in memory"
    )


@pytest.mark.parametrize("field", ["initial", "final"])
def test_lists_of_hosts_go_with_those_of_devices(field: str) -> None:
    fields = offloaded()
    del fields[field]
    with pytest.raises(msgspec.ValidationError) as caught:
        built(fields)
    assert str(caught.value) == f"expected {field} with host_{field}, got none: add {field}"


def test_a_list_for_each_rank() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        built(offloaded(host_final=[[], []]))
    assert str(caught.value) == ("expected host_final to have one list for each of 1 ranks, got 2")
