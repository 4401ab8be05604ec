"""Where nothing is sent, a step of one process calls about as many operators as plain torch."""

from __future__ import annotations

import pytest

from benchmarks.kernel_cost import KernelRow, executor_of, plain_row, rows_of
from primepar.models import GPTConfig

MODEL, BATCH = GPTConfig(layers=2, hidden=64, heads=2, context=16, vocabulary=64), 4
IN_CHUNKS = "attention.backward"
"""On a CPU it takes many calls, and less time than torch's function."""


@pytest.fixture(scope="module")
def rows() -> list[KernelRow]:
    with executor_of("data", MODEL, BATCH, 1) as executor:
        return rows_of(executor, "data", 1)


def test_a_step_of_one_process_has_little_more_than_the_calls_of_plain_torch(
    rows: list[KernelRow],
) -> None:
    plain = plain_row(MODEL, BATCH, "data")
    ours = [row for row in rows if row.kind != IN_CHUNKS]
    assert plain.calls > 50
    assert sum(row.calls for row in ours) <= 1.6 * plain.calls
    assert sum(row.bytes for row in ours) <= 1.4 * plain.bytes


def test_norm_and_loss_of_whole_rows_are_one_call_a_result(rows: list[KernelRow]) -> None:
    """Two for the statistics, put into one block, and for backward, which has a scale a row."""
    calls = {row.kind: row.calls / row.count for row in rows}
    assert {name: calls[name] for name in calls if "norm" in name} == {
        "layer_norm.statistics": 2, "layer_norm.normalize": 1, "norm.forward": 1,
        "layer_norm.gradient": 1, "layer_norm.backward": 2,
    }  # fmt: skip
    assert not any(name.startswith("loss") for name in calls)
