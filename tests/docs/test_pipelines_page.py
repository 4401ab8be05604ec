"""The table of pipelines on its page is what the benchmark prints."""

from __future__ import annotations

from pathlib import Path

from command import run

from benchmarks.bench import bench
from benchmarks.pipelines import pipelines

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()


def test_the_table_of_the_page_is_what_the_benchmark_prints() -> None:
    done = run("--stages", "2,4", program=lambda: bench(pipelines), name="pipelines")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    on_page = {" ".join(line.split()) for line in PAGE.splitlines()}
    assert len(lines) == 11
    assert set(lines) <= on_page
