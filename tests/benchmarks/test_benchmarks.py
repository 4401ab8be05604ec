"""The benchmarks of bytes agree with the formulas, and refuse a shape that cannot be cut."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(*options: str, script: str = "linear_bytes.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *options]
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


def family(rows: int, hidden: int, devices: int) -> dict[str, dict[str, float]]:
    """Plan -> its counts for the MLP."""
    options = ("--rows", str(rows), "--hidden", str(hidden), "--devices", str(devices), "--json")
    done = run(*options, script="family_bytes.py")
    assert done.returncode == 0, done.stderr
    return {row["plan"]: row for row in json.loads(done.stdout) if row["part"] == "mlp"}


def total(row: dict[str, float]) -> float:
    """Elements sent per device in the linear operators and between them."""
    return row["linear"] + row["inside"]


def test_every_plan_sends_what_its_formulas_count() -> None:
    rows = family(64, 32, 4)
    assert set(rows) == {
        "megatron", "megatron-sp", "summa", "tesseract", "primepar", "stationary", "data"
    }  # fmt: skip
    assert all(row["linear"] == row["formula"] for row in rows.values())


def test_the_stationary_chain_redistributes_nothing_and_sends_less() -> None:
    few, many, wide = family(64, 32, 4), family(512, 32, 4), family(256, 32, 16)
    for rows in (few, many, wide):
        assert rows["stationary"]["inside"] == rows["stationary"]["around"] == 0
    assert total(few["stationary"]) <= 0.45 * total(few["primepar"])
    assert total(many["stationary"]) <= 0.30 * total(many["primepar"])
    assert total(wide["stationary"]) <= 0.45 * total(wide["megatron"])


def test_one_dimension_sends_least_on_few_devices_with_few_rows() -> None:
    rows = family(64, 32, 4)
    assert min(rows, key=lambda name: total(rows[name])) == "megatron"


def test_a_sum_in_float32_is_rounded_once_however_many_hops_it_makes() -> None:
    done = run("--size", "256", "--json", script="half_precision.py")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["hops"] for row in rows] == [1, 2, 4, 8, 16]
    for row in rows:
        assert abs(row["float32"] - 1) < 0.01
        assert abs(row["bfloat16"] / row["predicted"] - 1) < 0.05
