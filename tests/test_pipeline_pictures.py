"""Pictures and the table of pipelines: every action at its time, and what the page prints."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run
from pipeline_mutants import SCHEDULES

from benchmarks.__main__ import app
from benchmarks.pipelines import measure_pipelines, pipeline_lines
from primepar.api.drawings import emulated_events, method_drawing
from primepar.cli import main
from primepar.partition import METHODS
from primepar.partition.pipeline.gpipe import GPipe
from primepar.partition.pipeline.method import PipelineMethod
from primepar.partition.pipeline.zero_bubble_v import ZeroBubbleV
from primepar.pictures.pipeline_gantt import action_boxes

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "pipelines.md").read_text()
RECTANGLE = "{http://www.w3.org/2000/svg}rect"


def test_boxes_are_the_actions_at_their_times() -> None:
    boxes = action_boxes(emulated_events(GPipe(stages=2, micro_batches=2).program(), None,
                                         GPipe.untimed))  # fmt: skip
    assert [(box.phase[0], box.micro_batch, box.start) for box in boxes if box.stage == 0] == [
        ("f", 0, 0), ("f", 1, 1), ("b", 1, 5), ("g", 1, 6), ("b", 0, 7), ("g", 0, 8),
    ]  # fmt: skip
    assert {box.chunk for box in boxes} == {0}


def test_chunks_of_a_stage_are_in_the_order_of_the_model() -> None:
    method = ZeroBubbleV(stages=2, micro_batches=3)
    boxes = action_boxes(emulated_events(method.program(), None, method.untimed))
    first = [(box.phase[0], box.chunk, box.micro_batch) for box in boxes if box.stage == 1][:4]
    assert first == [("f", 0, 0), ("f", 1, 0), ("f", 0, 1), ("f", 1, 1)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_action_has_a_box_with_a_tooltip(name: str) -> None:
    kind = METHODS[name]
    assert issubclass(kind, PipelineMethod)
    method = kind(stages=2, micro_batches=4)
    svg = method_drawing(method).svg
    tree = ElementTree.fromstring(svg)
    boxes = [box for box in tree.iter(RECTANGLE) if len(box)]
    chunks = method.pipeline.chunks
    assert len(boxes) == 2 * 3 * 4 * chunks
    words = "stage 1: W(3)" + (" of chunk 1" if chunks > 1 else "")
    assert any(words in (box[0].text or "") for box in boxes)


def test_numbers_that_do_not_fit_are_left_out() -> None:
    svg = method_drawing(GPipe(stages=2, micro_batches=30)).svg
    texts = re.findall(r"<text [^>]*>(\d+)</text>", svg)
    assert "7" in texts
    assert "29" not in texts


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
