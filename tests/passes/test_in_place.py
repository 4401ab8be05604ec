"""Blocks cut and joined in place, in every reader of programs."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import disagreement, refuted
from oracle.explore import explore
from phase_programs import Json, built, compute, program

from primepar.certify.program import certify_program
from primepar.errors import (
    ClaimError,
    DeviceMemoryError,
    EmulationError,
    InFlightError,
    MissingBlockError,
)
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.run import simulate
from primepar.reference import emulate
from primepar.reference.check import check_program
from primepar.schedule import Program, program_text
from primepar.schedule.effects import effects, frees
from primepar.schedule.program import Compute, Cut, Free, Join
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program

TENSORS = {
    "x": {"cuts": [[0, 4]]},
    "x.halves": {"of": "x", "cuts": [[0, 2, 4]]},
    "y": {"cuts": [[0, 4]]},
    "y.halves": {"of": "y", "cuts": [[0, 2, 4]]},
}
HALVES = ["x.halves[0]", "x.halves[1]"]
CUT = {"op": "cut", "block": "x[0]", "blocks": HALVES, "in_place": True}
JOIN = {"op": "join", "blocks": HALVES, "block": "x[0]", "in_place": True}
SENT = {"op": "isend", "peer": 0, "block": "x[0]", "request": "a"}
GOT = {"op": "irecv", "peer": 0, "block": "x.halves[1]", "request": "a"}
WAIT = {"op": "wait", "request": "a"}


def asked(*lists: list[Json], final: str = "x[0]", **fields: object) -> Program:
    """Every rank has x[0] at first."""
    held: list[list[str]] = [["x[0]"] for _ in lists]
    ends = [final.split() for _ in lists]
    return built(program(list(lists), tensors=TENSORS, initial=held, final=ends, **fields))


def wrong(made: Program) -> set[str]:
    """Properties that the proof refutes; the explorer, and the checker of certificates, agree."""
    report, seen = verify_program(made), explore(made)
    assert disagreement(report, seen) == ""
    properties = refuted(report)
    if properties != {"memory"}:
        certify_program(certificate(made, report), made)
    return properties


def refusal(made: Program) -> EmulationError:
    memories = [{"x[0]": np.arange(4.0)}] * made.ranks
    with pytest.raises(EmulationError) as refused:
        emulate(made, memories)
    return refused.value


RIGHT = asked([CUT, JOIN], memory={"device": 4})


def test_a_block_and_its_parts_have_one_memory() -> None:
    assert wrong(RIGHT) == set()
    assert verify_program(RIGHT)["memory"].reason == (
        "at most 4 of 4 live elements in device memory; resident copies: x 1"
    )
    over = asked([CUT, JOIN], memory={"device": 3})
    assert wrong(over) == {"memory"}
    emulation = emulate(RIGHT, [{"x[0]": np.arange(4.0)}])
    assert emulation.peak == [4]
    assert list(emulation.blocks[0]) == ["x[0]"]
    assert np.array_equal(emulation.blocks[0]["x[0]"].array, np.arange(4.0))


def test_a_copy_has_memory_of_its_own() -> None:
    copies = [{**node, "in_place": False} for node in (CUT, JOIN)]
    made = asked(copies, memory={"device": 7})
    assert wrong(made) == {"memory"}
    with pytest.raises(DeviceMemoryError, match="expected at most 7 live elements"):
        emulate(made, [{"x[0]": np.arange(4.0)}])
    fits = asked(copies, memory={"device": 8})
    assert emulate(fits, [{"x[0]": np.arange(4.0)}]).peak == [8]
    halves = asked([CUT, {**JOIN, "in_place": False}], memory={"device": 7})
    assert wrong(halves) == {"memory"}
    assert wrong(asked([CUT, {**JOIN, "in_place": False}], memory={"device": 8})) == set()


def test_it_takes_no_time_and_the_simulator_counts_the_memory_once() -> None:
    cluster = load_cluster("v100-8x4")
    simulation = simulate(RIGHT, cluster, "float32")
    assert (simulation.seconds, simulation.events, simulation.peak) == (0, [], [16])
    copied = simulate(asked([{**CUT, "in_place": False}], final=HALVES[0]), cluster, "float32")
    assert (copied.seconds > 0, copied.peak) == (True, [32])


def test_the_text_and_the_uses_show_it() -> None:
    assert "cut      x[0] -> x.halves[0] x.halves[1], in place\n" in program_text(RIGHT)
    assert "join     x.halves[0] x.halves[1] -> x[0], in place\n" in program_text(RIGHT)
    cut, join = RIGHT.programs[0]
    assert isinstance(cut, Cut)
    assert isinstance(join, Join)
    assert (effects(cut, 0).reads, effects(cut, 0).writes, frees(cut)) == (
        ("x[0]",),
        tuple(HALVES),
        ("x[0]",),
    )
    assert (effects(join, 0).reads, effects(join, 0).writes, frees(join)) == (
        tuple(HALVES),
        ("x[0]",),
        tuple(HALVES),
    )
    assert frees(Cut("a", ("b",))) == frees(Join(("b",), "a")) == frees(Compute(("a",), "b")) == ()
    assert frees(Free("a")) == ("a",)


@pytest.mark.parametrize(
    ("nodes", "final"),
    [
        ([CUT, {"op": "compute", "reads": ["x[0]"], "accumulates": "z"}], HALVES[0]),
        ([CUT, {"op": "free", "block": "x[0]"}], HALVES[0]),
        ([CUT, CUT], HALVES[0]),
        ([CUT, JOIN, {"op": "free", "block": HALVES[0]}], "x[0]"),
        ([CUT, JOIN, JOIN], "x[0]"),
        ([{**CUT, "in_place": False}, {"op": "free", "block": HALVES[1]}, JOIN], "x[0]"),
    ],
)
def test_what_is_gone_is_not_used(nodes: list[Json], final: str) -> None:
    made = asked(nodes, final=final)
    assert wrong(made) == {"placement"}
    assert isinstance(refusal(made), MissingBlockError)


@pytest.mark.parametrize(("nodes", "final"), [([CUT], "x[0]"), ([CUT, JOIN], HALVES[0])])
def test_what_is_gone_does_not_end(nodes: list[Json], final: str) -> None:
    made = asked(nodes, final=final)
    assert wrong(made) == {"alignment"}
    assert "at the end" in str(refusal(made))


def test_a_block_in_flight_is_not_cut_in_place() -> None:
    taken = {"op": "recv", "peer": 1, "block": "z"}
    made = asked([taken], [SENT, CUT, WAIT, JOIN])
    assert wrong(made) == {"races"}
    assert isinstance(refusal(made), InFlightError)
    assert wrong(asked([taken], [SENT, {**CUT, "in_place": False}, WAIT])) == set()
    assert wrong(asked([taken], [SENT, WAIT, CUT, JOIN])) == set()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_part_that_arrives_is_not_joined(in_place: bool) -> None:
    cut, join = {**CUT, "in_place": False}, {**JOIN, "in_place": in_place}
    give = [cut, {"op": "send", "peer": 1, "block": HALVES[1]}]
    made = asked(give, [cut, GOT, join, WAIT])
    assert wrong(made) == {"races"}
    assert isinstance(refusal(made), InFlightError)
    assert wrong(asked(give, [cut, GOT, WAIT, join])) == set()


def test_a_part_that_leaves_is_joined_but_not_in_place() -> None:
    cut, sent = {**CUT, "in_place": False}, {**SENT, "block": HALVES[1]}
    taken = {"op": "recv", "peer": 1, "block": "z"}
    made = asked([taken], [cut, sent, JOIN, WAIT])
    assert wrong(made) == {"races"}
    assert isinstance(refusal(made), InFlightError)
    assert wrong(asked([taken], [cut, sent, {**JOIN, "in_place": False}, WAIT])) == set()


def test_a_product_is_the_same_in_parts_that_have_its_memory() -> None:
    phases = {
        "f": {"reads": ["x[M]"], "writes": "y[M]"},
        "g": {"reads": ["y.halves[M]"], "writes": "z[M]"},
    }
    parts = ["y.halves[0]", "y.halves[1]"]
    nodes = [
        compute("f", ["x[0]"], "y[0]", M=0),
        {"op": "cut", "block": "y[0]", "blocks": parts, "in_place": True},
        *(compute("g", [part], f"z[{m}]", M=m) for m, part in enumerate(parts)),
        {"op": "join", "blocks": parts, "block": "y[0]", "in_place": True},
    ]
    made = asked(nodes, final="y[0] z[0] z[1]", phases=phases, grid={"f": {"M": 1}, "g": {"M": 2}})
    assert wrong(made) == set()
    assert check_program(made).equal


def test_a_certificate_of_another_program_is_refused() -> None:
    copied = asked([{**CUT, "in_place": False}, JOIN])
    with pytest.raises(ClaimError, match="certificate of this program"):
        certify_program(certificate(copied, verify_program(copied)), RIGHT)
