"""The benchmark that trains on bytes and on tokens: its texts, curves, table and wrong input."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from command import Done, run
from torch import device
from torch.distributed import HashStore  # type: ignore[attr-defined]

from benchmarks.bits_per_byte import (
    POINTS,
    CurvePoint,
    TextRun,
    bits_per_byte,
    lines,
    trained,
)
from primepar.cli import main
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


def test_the_table_has_a_column_for_each_run() -> None:
    points = [CurvePoint(n, 10 * n, 4 / n) for n in range(1, POINTS + 1)]
    table = list(lines([TextRun("bytes", 256, 1.0, points), TextRun("x", 300, 2.5, points)], 12))
    assert table[1:4] == [
        "seconds         bytes             x",
        "      2         4.000         4.000",
        "      4         2.000         2.000",
    ]
    assert table[-2:] == [
        "steps              60            60",
        "bytes/t          1.00          2.50",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seconds", "0"), "--seconds: expected a positive number, got 0.0"),
        (("--vocabularies", "512,many"), "--vocabularies: expected numbers, got '512,many'"),
    ],
)
def test_wrong_input_ends_in_one_line(words: tuple[str, ...], message: str) -> None:
    command, name = typer.Typer(add_completion=False), "bits_per_byte"
    command.command()(bits_per_byte)
    done = run(*words, program=lambda: main(command, name), name=name)
    assert done == Done(2, "", f"{name}: error: {message}\n")
