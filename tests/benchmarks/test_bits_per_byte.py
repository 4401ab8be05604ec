"""The benchmark that trains on bytes and on tokens: its texts, curves and table."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import device
from torch.distributed import HashStore  # type: ignore[attr-defined]

from benchmarks.bench import text
from benchmarks.bits_per_byte import POINTS, CurvePoint, TextRun, trained
from primepar.distributed.training import data
from primepar.distributed.training.launch import World


def test_runs_have_the_same_text_and_a_curve_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "library_files", lambda: [Path("text.txt")])
    Path("text.txt").write_text("".join(f"the cat number {n} sat on the mat; " for n in range(600)))
    world = World(0, 1, device("cpu"), HashStore())
    letters, tokens = (trained(given, 0.05, world) for given in (None, "300"))
    assert (letters.name, tokens.name) == ("bytes", "300 tokens")
    assert (letters.vocabulary, letters.bytes_per_token) == (256, 1)
    assert tokens.vocabulary == 300
    assert tokens.bytes_per_token > 1.5
    for made in (letters, tokens):
        assert len(made.curve) == POINTS
        for number, point in enumerate(made.curve, 1):
            assert point.seconds >= 0.05 * number / POINTS
            assert 0 < point.bits_per_byte < 10


def test_the_table_has_a_line_for_each_run() -> None:
    points = [CurvePoint(n, 10 * n, 4 / n) for n in range(1, POINTS + 1)]
    rows = [TextRun("bytes", 12.0, 256, 1.0, points), TextRun("x", 12.0, 300, 2.5, points)]
    assert text(rows).splitlines()[1:] == [
        "text     2 s    4 s    6 s    8 s   10 s   12 s  steps  bytes per token",
        "bytes  4.000  2.000  1.333  1.000  0.800  0.667     60             1.00",
        "x      4.000  2.000  1.333  1.000  0.800  0.667     60             2.50",
    ]
