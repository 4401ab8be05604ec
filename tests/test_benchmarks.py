"""The benchmark of bytes counts what the formulas say, and refuses a shape that cannot be cut."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "linear_bytes.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_is_counted_is_the_formula_and_no_less_is_held_later() -> None:
    done = run("--rows", "144", "--hidden", "144", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["devices"] for row in rows} == {4, 8, 9, 16}
    known = [row for row in rows if row["formula"] is not None]
    assert {row["sequence"] for row in known} >= {"K4", "P2x2", "P3x3", "P4x4"}
    assert all(row["sent"] == row["formula"] for row in known)
    assert all(row["peak"] >= row["initial"] for row in rows)


def test_the_table_has_a_line_for_each_sequence() -> None:
    lines = run("--rows", "144", "--hidden", "144").stdout.splitlines()
    assert sum("P2x2" in line for line in lines) == 6
    assert lines[0].startswith("M=144 N=144 K=576; ")


def test_a_shape_that_the_slices_do_not_divide_is_refused_in_one_line() -> None:
    done = run("--rows", "13")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "linear_bytes.py: error: dim M: expected a positive multiple of its 4 slices, got 13: "
        "pad M with zeros to 16"
    )
