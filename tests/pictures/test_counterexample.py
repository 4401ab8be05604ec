"""Counterexamples as data, as text and as SVG: one picture for each kind."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest
from command import run
from conftest import Golden

from primepar.api.target import load_primitive
from primepar.pictures.counterexample import (
    MOST_ROWS,
    CounterexamplePanel,
    counterexample_lines,
    counterexample_svg,
)
from primepar.pictures.svg import RED
from primepar.schedule import Program, load_program
from primepar.schedule.evidence import Counterexample, Kind, OverMemory, Violation, WrongTraffic
from primepar.schedule.matching import Matches
from primepar.schedule.program import Recv, Send
from primepar.verify.counterexample.program import of_violation
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.program import verify_program
from primepar.verify.report import Report

TESTS = Path(__file__).parents[1]
WRONG = TESTS / "wrong"
SVG = "{http://www.w3.org/2000/svg}"
PRIMITIVES = [
    "another_row.py:AnotherRow",
    "every_second_row.py:EverySecondRow",
    "nobody_sends.py:NobodySends",
    "one_step.py:OneStep",
    "twins.py:Twins",
]


def details(report: Report) -> dict[str, Counterexample]:
    return {result.name: result.details for result in report.properties if result.details}


def report_of(name: str) -> Report:
    if name.endswith(".json"):
        return verify_program(load_program(WRONG / name))
    return verify_primitive(load_primitive(f"{WRONG}/{name}"))


@pytest.mark.parametrize("name", [*sorted(path.name for path in WRONG.glob("*.json")), *PRIMITIVES])
def test_every_refuted_property_is_drawn(name: str, golden: Golden) -> None:
    report = report_of(name)
    examples = details(report)
    refuted = [result.name for result in report.properties if result.verdict == "refuted"]
    assert list(examples) == refuted
    text = "\n\n".join(
        "\n".join([f"{prop}: {example.kind}", *counterexample_lines(example)])
        for prop, example in examples.items()
    )
    golden(f"pictures/{name.partition('.')[0]}", text)
    panels = [CounterexamplePanel(prop, report[prop].counterexample or "", example)
              for prop, example in examples.items()]  # fmt: skip
    root = ElementTree.fromstring(counterexample_svg(name, panels))
    words = [mark.text for mark in root.iter(f"{SVG}text")]
    for prop, example in examples.items():
        assert f"{prop}: {example.kind}" in words
        for event in example.events:
            assert (event.text if event.index is None else f"{event.index} {event.text}") in words
            assert f"rank {event.rank}" in words


def test_every_kind_is_drawn() -> None:
    text = "\n".join(path.read_text() for path in (TESTS / "golden" / "pictures").glob("*.txt"))
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
    program = load_program(WRONG / "send-send-deadlock.json")
    example = of_violation(Matches(program), violation)
    assert (example.kind, example.ranks) == (kind, (0,))
    assert counterexample_lines(example) == ["  rank 0", line]


def test_a_cycle_names_where_each_rank_hangs_and_what_it_never_reaches() -> None:
    example = details(report_of("send-send-deadlock.json"))["deadlock-freedom"]
    assert example.kind == "waiting-cycle"
    assert example.ranks == (0, 1)
    assert [(event.rank, event.index, event.role) for event in example.events] == [
        (0, 0, "hangs"), (0, 1, "never reached"), (1, 0, "hangs"), (1, 1, "never reached"),
    ]  # fmt: skip
    waits = [(arrow.source, arrow.target, arrow.means) for arrow in example.arrows]
    assert waits == [(0, 3, "waits for"), (2, 1, "waits for")]


def test_a_long_cycle_is_drawn_shortened() -> None:
    lists = tuple((Send((rank + 1) % 20, f"x{rank}"), Recv((rank - 1) % 20, "y"))
                  for rank in range(20))  # fmt: skip
    report = verify_program(Program("primepar-program", 1, 20, lists))
    lines = counterexample_lines(details(report)["deadlock-freedom"])
    assert len(lines) == 2 * MOST_ROWS + 1
    assert lines[2 * MOST_ROWS - 2].endswith("12 more ranks")


def test_a_wrong_block_is_followed_to_where_it_was_made_in_columns_or_in_a_list() -> None:
    example = details(report_of("wrong-block-sent.json"))["placement"]
    assert [(event.rank, event.index) for event in example.events] == [
        (1, None), (1, 0), (0, 1), (0, 5),
    ]  # fmt: skip
    assert example.blocks == ("I[0,1]",)
    assert counterexample_lines(example, width=40) == [
        "  initial W[0,1]  on rank 1",
        "      | moves to",
        "  0 isend W[0,1] -> 0  on rank 1",
        "      | moves to",
        "  1 irecv I[0,1] <- 1  on rank 0",
        "      | moves to",
        "! 5 forward O[0,0] += I[0,1] * W[1,0]  (needs the data of I[0,1])  on rank 0",
    ]


def test_json_has_the_details_and_the_terminal_the_picture_under_the_sentence() -> None:
    target = str(WRONG / "missing-product.json")
    coverage = json.loads(run("verify", target, "--json").out)["properties"][0]
    assert coverage["counterexample"].startswith("forward sub-operator (M=0, N=1, K=0): expected")
    assert coverage["details"] == {
        "kind": "never-done",
        "phase": "forward",
        "sub_operator": {"M": 0, "N": 1, "K": 0},
        "plane": {"rows": "N", "columns": "K", "first": [0, 0], "counts": [[1, 1], [0, 1]]},
    }
    out = run("verify", target).out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "              K=0  K=1\n          N=0   1    1\n          N=1  [0]   1\n" in out


# SVG


def drawn(target: str, folder: Path) -> str:
    path = folder / "wrong.svg"
    done = run("verify", f"{WRONG}/{target}", "-o", str(path))
    assert (done.code, done.err) == (1, f"wrote {path}\n")
    return path.read_text()


def test_a_cycle_has_an_arrow_for_each_wait(tmp_path: Path) -> None:
    picture = drawn("swapped-order-deadlock.json", tmp_path)
    for waiting, awaited in ((0, 1), (1, 3), (3, 2), (2, 0)):
        assert f"<title>rank {waiting} waits for rank {awaited}</title>" in picture


def test_a_wrong_block_is_drawn_with_its_way(tmp_path: Path) -> None:
    picture = drawn("wrong-block-sent.json", tmp_path)
    assert picture.count("<title>moves to</title>") == 3
    assert ">needs the data of I[0,1]<" in picture


def test_the_smallest_mesh_has_what_is_wrong_in_red(tmp_path: Path) -> None:
    root = ElementTree.fromstring(drawn("twins.py:Twins", tmp_path))
    texts = [(mark.text, mark.get("fill") == RED) for mark in root.iter(f"{SVG}text")]
    mesh = texts[texts.index(("devices at s=2", False)) :]
    assert mesh[:11] == [
        ("devices at s=2", False), ("c=0", False), ("c=1", False), ("r=0", False), ("0", True),
        ("1", True), ("r=1", False), ("2", False), ("3", False),
        ("device 0 (r=0, c=0) at t=0", True), ("device 1 (r=0, c=1) at t=0", True),
    ]  # fmt: skip
    assert ("needs I[0,0], has I[0,1]", True) in mesh
    assert ("forward, M=0: times computed", False) in mesh


def test_nothing_is_drawn_where_nothing_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "none.svg"
    done = run("verify", "by-output", "--side", "2", "-o", str(path))
    assert (done.code, done.err) == (0, f"nothing is refuted: {path} is not written\n")
    assert not path.exists()


def test_another_ending_is_refused() -> None:
    done = run("verify", "by-output", "-o", "picture.png")
    assert (done.code, done.err) == (
        2,
        "primepar: error: --output: expected a name that ends with .svg (the picture), "
        "got picture.png\n",
    )
