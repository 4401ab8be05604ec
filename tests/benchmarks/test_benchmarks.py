"""The benchmarks of bytes and of rounding agree with the formulas."""

from __future__ import annotations

from functools import cache, partial

from benchmarks import half_precision
from benchmarks.family_bytes import FamilyRow, family_bytes
from primepar.plan import PRESETS


@cache
def mlp(name: str, rows: int, hidden: int, devices: int) -> FamilyRow:
    """Counts of a plan for the MLP."""
    cases = dict(family_bytes(rows, hidden, (devices,)))
    row = cases[f"{name}, mlp on {devices}"]()
    assert isinstance(row, FamilyRow)
    return row


def total(row: FamilyRow) -> float:
    """Elements sent per device in the linear operators and between them."""
    return row.linear + row.inside


def test_every_plan_sends_what_its_formulas_count_and_one_dimension_least_of_few_rows() -> None:
    names = [name for name in PRESETS if name != "3d"]
    rows = {name: mlp(name, 64, 32, 4) for name in names}
    assert set(rows) == {
        "megatron", "megatron-sp", "summa", "tesseract", "primepar", "stationary",
        "stationary-both-ways", "data",
    }  # fmt: skip
    assert all(row.linear == row.formula for row in rows.values())
    assert min(rows, key=lambda name: total(rows[name])) == "megatron"


def test_the_stationary_chain_redistributes_nothing_and_sends_less() -> None:
    few, many, wide = (
        partial(mlp, rows=rows, hidden=32, devices=devices)
        for rows, devices in ((64, 4), (512, 4), (256, 16))
    )
    for sizes in (few, many, wide):
        assert sizes("stationary").inside == sizes("stationary").around == 0
    assert total(few("stationary")) <= 0.45 * total(few("primepar"))
    assert total(many("stationary")) <= 0.30 * total(many("primepar"))
    assert total(wide("stationary")) <= 0.45 * total(wide("megatron"))


def test_a_sum_in_float32_is_rounded_once_however_many_hops_it_makes() -> None:
    for hops in half_precision.HOPS:
        row = half_precision.measure(hops, 256)
        assert abs(row.float32 - 1) < 0.01
        assert abs(row.bfloat16 / row.predicted - 1) < 0.05
