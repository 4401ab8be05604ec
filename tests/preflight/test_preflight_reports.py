"""SARIF files and annotations of what preflight refutes."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from primepar.preflight.report import Finding, SourceLine, findings, sarif, workflow_commands
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
    same = Finding("races", "warning", "a, b", (SourceLine("a", 1, "x"),) * 3)
    assert list(workflow_commands([same]))[1:] == ["::notice file=a,line=1,title=races::x; x"]


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
