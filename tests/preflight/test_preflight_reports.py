"""SARIF files and annotations of what preflight refutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from msgspec.structs import replace

from primepar.preflight.report import SourceLine, findings, sarif, workflow_commands
from primepar.schedule.program import Program, Recv, Send
from primepar.verify.program import verify_program

LISTS = tuple(
    (
        Send(peer=1 - rank, block="x", source=f"app/ring,1.py:{4 + rank}"),
        Recv(peer=1 - rank, block="y", source=f"app/ring,1.py:{6 + rank}"),
    )
    for rank in (0, 1)
)
REPORT = verify_program(Program("primepar-program", 1, 2, LISTS))


def test_a_cycle_is_one_result_with_all_of_its_lines() -> None:
    log = json.loads(sarif(findings(REPORT), "ring.py"))
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"] == [
        {"id": "deadlock-freedom", "shortDescription": {"text": "Every rank reaches its end"}}
    ]
    (result,) = run["results"]
    assert result["ruleId"] == "deadlock-freedom"
    assert result["level"] == "error"
    assert result["message"]["text"].startswith("ranks 0 and 1 wait for one another in a cycle")
    (place,) = result["locations"]
    assert place == {
        "physicalLocation": {
            "artifactLocation": {"uri": "app/ring,1.py"},
            "region": {"startLine": 4},
        },
        "message": {"text": "rank 0: send x -> 1 (hangs)"},
    }
    lines = [
        (related["id"], related["physicalLocation"]["region"]["startLine"])
        for related in result["relatedLocations"]
    ]
    assert lines == [(1, 5), (2, 6), (3, 7)]


def test_annotations_escape_what_github_reads() -> None:
    first, *others = workflow_commands(findings(REPORT))
    assert first.startswith(
        "::error file=app/ring%2C1.py,line=4,title=deadlock-freedom::ranks 0 and 1 wait for one "
        "another in a cycle: "
    )
    assert "%0A  rank 0 waits in instruction 0 (send x -> 1) at app/ring,1.py:4" in first
    assert others[0] == (
        "::notice file=app/ring%2C1.py,line=5,title=deadlock-freedom::rank 1: send x -> 0 (hangs)"
    )


def test_what_many_ranks_do_on_one_line_is_one_notice() -> None:
    ranks = tuple(
        (Send(peer=1 - rank, block="x", source="a.py:4"), Recv(peer=1 - rank, block="y"))
        for rank in (0, 1)
    )
    report = verify_program(Program("primepar-program", 1, 2, ranks))
    _, *notices = workflow_commands(findings(report))
    assert notices == [
        "::notice file=a.py,line=4,title=deadlock-freedom::rank 1: send x -> 0 (hangs)"
    ]


def test_what_is_undecided_is_a_warning_at_the_target() -> None:
    report = verify_program(Program("primepar-program", 1, 2, LISTS), timeout=1e-9)
    (finding,) = [found for found in findings(report) if found.property == "deadlock-freedom"]
    (result,) = json.loads(sarif([finding], "ring.py"))["runs"][0]["results"]
    assert result["level"] == "warning"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "ring.py"
    assert next(workflow_commands([finding])).startswith("::warning title=deadlock-freedom::not d")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("C:\\app\\ring.py:4", ("C:\\app\\ring.py", 4, "")),
        ("a:b.csv:2, field 12 (2:I0)", ("a:b.csv", 2, ", field 12 (2:I0)")),
        ("ring.py", None),
        ("ring.py:", None),
        ("ring.py:0", None),
        ("ring.py:four", None),
        (f"ring.py:{10**20}", None),
    ],
)
def test_a_source_is_any_text(source: str, place: tuple[str, int, str] | None) -> None:
    lists = tuple(tuple(replace(node, source=source) for node in nodes) for nodes in LISTS)
    finding = findings(verify_program(Program("primepar-program", 1, 2, lists)))[0]
    if place is None:
        assert finding.lines == ()
    else:
        file, line, inside = place
        assert finding.lines[0] == (SourceLine(file, line, f"rank 0{inside}: send x -> 1 (hangs)"))
    assert json.loads(sarif([finding], "ring.py"))["runs"][0]["results"]


@pytest.mark.parametrize(
    ("target", "file", "line"),
    [
        ("docs/examples/head-on.json", "docs/examples/head-on.json", 1),
        ("docs/examples/deferred-zbv.csv", "docs/examples/deferred-zbv.csv", 2),
        ("tests/golden/flight_recorder/mismatch", "train.py", 11),
    ],
)
def test_every_kind_of_file_has_places(target: str, file: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "findings.sarif"
    assert run("preflight", "--sarif", str(path), target).code == 1
    (first, *_) = json.loads(path.read_text())["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": file},
        "region": {"startLine": line},
    }


def test_what_is_proved_has_no_result() -> None:
    right = Program("primepar-program", 1, 1, ((),))
    log = json.loads(sarif(findings(verify_program(right)), "ring.py"))
    assert log["runs"][0]["results"] == []
