"""The table of limits of device memory."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.device_memory import PICTURED, measure, step_program
from primepar.passes.offload import moved_elements


def test_the_table_has_the_same_loss_within_every_limit() -> None:
    rows = [measure(PICTURED, 2, share) for share in (None, Fraction(1, 2), Fraction(1, 3))]
    assert len({row.loss for row in rows}) == 1
    assert rows[0].limit is None
    assert rows[0].moved == 0 < rows[1].moved < rows[2].moved
    assert all(row.peak <= row.limit for row in rows[1:] if row.limit is not None)
    assert rows[0].simulated < rows[1].simulated < rows[2].simulated
    assert rows[0].cells["limit MiB"] == "none"
    third = step_program(PICTURED, 2, Fraction(1, 3))
    assert rows[2].moved == 4 * moved_elements(third)[0]
