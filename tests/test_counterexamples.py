"""Counterexamples as data and as text pictures, one for each kind."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest
from command import run
from conftest import Golden

from primepar.api.resolve_target import load_primitive
from primepar.pictures.counterexample_text import MOST_ROWS, counterexample_lines
from primepar.schedule import Program, load_program
from primepar.schedule.counterexample import Counterexample, Kind
from primepar.schedule.evidence import OverMemory, Violation, WrongTraffic
from primepar.schedule.matching import Matches
from primepar.schedule.program import Recv, Send
from primepar.verify.counterexample.program import of_violation
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.program import verify_program
from primepar.verify.report import Report

FOLDER = Path(__file__).parent / "wrong"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.json"))
PRIMITIVES = [
    "another_row.py:AnotherRow",
    "every_second_row.py:EverySecondRow",
    "nobody_sends.py:NobodySends",
    "one_step.py:OneStep",
    "twins.py:Twins",
]


def details(report: Report) -> dict[str, Counterexample]:
    return {
        result.name: result.details for result in report.properties if result.details is not None
    }


def report_of(name: str) -> Report:
    if name.endswith(".json"):
        return verify_program(load_program(FOLDER / name))
    return verify_primitive(load_primitive(f"{FOLDER}/{name}"))


@pytest.mark.parametrize("name", [*(f"{name}.json" for name in PROGRAMS), *PRIMITIVES])
def test_every_counterexample_has_a_picture(name: str, golden: Golden) -> None:
    report = report_of(name)
    counterexamples = details(report)
    assert set(counterexamples) == {
        name_.name for name_ in report.properties if name_.verdict == "refuted"
    }
    pictures = [
        "\n".join(
            [
                f"{name_}: {counterexamples[name_].kind}",
                *counterexample_lines(counterexamples[name_]),
            ]
        )
        for name_ in counterexamples
    ]
    golden(f"pictures/{name.partition('.')[0]}", "\n\n".join(pictures))


def test_every_kind_is_drawn() -> None:
    golden_texts = (Path(__file__).parent / "golden" / "pictures").glob("*.txt")
    text = "\n".join(path.read_text() for path in golden_texts)
    bounds = {"over-memory", "wrong-traffic"}  # below
    assert {kind for kind in get_args(Kind) if f": {kind}\n" not in text} <= bounds


@pytest.mark.parametrize(
    ("violation", "kind", "line"),
    [
        (
            OverMemory((0, 1), "device", 4, {"X": 4, "Y": 4}),
            "over-memory",
            "! 1 recv Y <- 1  (over the bound)",
        ),
        (
            WrongTraffic(0, Fraction(2), Fraction(4), ((Fraction(4), 0),)),
            "wrong-traffic",
            "! 0 send X -> 1  (leaves here)",
        ),
    ],
)
def test_bounds_are_drawn_too(violation: Violation, kind: str, line: str) -> None:
    program = load_program(FOLDER / "send-send-deadlock.json")
    counterexample = of_violation(Matches(program), violation)
    assert (counterexample.kind, counterexample.ranks) == (kind, (0,))
    assert counterexample_lines(counterexample) == ["  rank 0", line]


def test_a_cycle_names_where_each_rank_hangs_and_what_it_never_reaches() -> None:
    counterexample = details(report_of("send-send-deadlock.json"))["deadlock-freedom"]
    assert counterexample.kind == "waiting-cycle"
    assert counterexample.ranks == (0, 1)
    assert [(event.rank, event.index, event.role) for event in counterexample.events] == [
        (0, 0, "hangs"), (0, 1, "never reached"), (1, 0, "hangs"), (1, 1, "never reached"),
    ]  # fmt: skip
    waits = [(arrow.source, arrow.target, arrow.means) for arrow in counterexample.arrows]
    assert waits == [(0, 3, "waits for"), (2, 1, "waits for")]


def ring(ranks: int) -> Program:
    """Every rank sends to the next before it receives."""
    lists = tuple(
        (Send(peer=(rank + 1) % ranks, block=f"x{rank}"), Recv(peer=(rank - 1) % ranks, block="y"))
        for rank in range(ranks)
    )
    return Program("primepar-program", 1, ranks, lists)


def test_a_long_cycle_is_drawn_shortened() -> None:
    counterexample = details(verify_program(ring(20)))["deadlock-freedom"]
    lines = counterexample_lines(counterexample)
    assert len(counterexample.ranks) == 20
    assert len(lines) == 2 * MOST_ROWS + 1
    assert lines[2 * MOST_ROWS - 2].endswith("12 more ranks")


def test_a_wrong_block_is_followed_to_where_it_was_made() -> None:
    counterexample = details(report_of("wrong-block-sent.json"))["placement"]
    assert [(event.rank, event.index) for event in counterexample.events] == [
        (1, None), (1, 0), (0, 1), (0, 5),
    ]  # fmt: skip
    assert counterexample.events[-1].wrong
    assert counterexample.blocks == ("I[0,1]",)


def test_a_story_that_is_too_wide_becomes_a_list() -> None:
    counterexample = details(report_of("wrong-block-sent.json"))["placement"]
    assert counterexample_lines(counterexample, width=40) == [
        "  initial W[0,1]  on rank 1",
        "      | moves to",
        "  0 isend W[0,1] -> 0  on rank 1",
        "      | moves to",
        "  1 irecv I[0,1] <- 1  on rank 0",
        "      | moves to",
        "! 5 forward O[0,0] += I[0,1] * W[1,0]  (needs the data of I[0,1])  on rank 0",
    ]


def test_json_has_the_details_and_the_sentence() -> None:
    done = run("verify", str(FOLDER / "missing-product.json"), "--json")
    coverage = json.loads(done.out)["properties"][0]
    assert coverage["counterexample"].startswith("forward sub-operator (M=0, N=1, K=0): expected")
    assert coverage["details"] == {
        "kind": "never-done",
        "phase": "forward",
        "sub_operator": {"M": 0, "N": 1, "K": 0},
        "plane": {"rows": "N", "columns": "K", "first": [0, 0], "counts": [[1, 1], [0, 1]]},
    }


def test_the_terminal_shows_the_picture_under_the_sentence() -> None:
    done = run("verify", str(FOLDER / "missing-product.json"))
    assert all(line == line.rstrip() for line in done.out.splitlines())
    assert "          N\\K   0    1\n            0   1    1\n            1  [0]   1\n" in done.out
