"""The table of pipelines on its page is what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

from benchmarks.__main__ import app
from benchmarks.pipelines import measure_pipelines, pipeline_lines
from primepar.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()


def test_the_table_of_the_page_is_what_the_command_prints() -> None:
    lines = list(pipeline_lines(measure_pipelines([2, 4], str)))
    assert len(lines) == 11
    for line in lines:
        assert f"\n{line}\n" in PAGE


def bench(*arguments: str) -> tuple[int, str, str]:
    done = run("pipelines", *arguments, program=lambda: main(app, "python -m benchmarks"))
    return done.code, done.out, done.err


def test_the_command_ends_with_0_where_all_is_as_the_formulas_give() -> None:
    code, out, _ = bench("--stages", "1,2")
    assert code == 0
    assert "gpipe              2    4   1      3 (3)   20.0%  4 (4), 4 (4)\n" in out


@pytest.mark.parametrize("given", ["0", "65", "x", "2,"])
def test_stages_that_cannot_be_are_refused(given: str) -> None:
    wrong = given.split(",")[-1]
    assert bench("--stages", given) == (
        2, "",
        "python -m benchmarks: error: --stages: expected numbers from 1 to 64, got "
        f"{wrong!r}: write --stages 2,4,8\n",
    )  # fmt: skip
