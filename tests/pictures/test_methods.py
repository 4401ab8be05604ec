"""Pictures of methods: every action, tile, step and average at its time, read from the events."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from pipeline_cases import SCHEDULES

from primepar.api.drawings import method_drawing
from primepar.partition import METHODS
from primepar.partition.local_sgd import LocalSGD
from primepar.partition.pipeline.gpipe import GPipe
from primepar.partition.pipeline.method import PipelineMethod
from primepar.partition.pipeline.zero_bubble_v import ZeroBubbleV
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, Variant
from primepar.schedule.program_method import ProgramMethod

SVG = "{http://www.w3.org/2000/svg}"


def bars(method: ProgramMethod) -> list[str]:
    """The tooltips of all bars: what, from when to when."""
    root = ElementTree.fromstring(method_drawing(method).svg)
    return [box[0].text or "" for box in root.iter(f"{SVG}rect") if len(box)]


def test_bars_of_a_pipeline_are_the_actions_at_their_times() -> None:
    actions = [bar for bar in bars(GPipe(stages=2, micro_batches=2)) if bar.startswith("stage 0")]
    assert actions == [
        "stage 0: F(0), 0 to 1", "stage 0: F(1), 1 to 2", "stage 0: B(1), 5 to 6",
        "stage 0: W(1), 6 to 7", "stage 0: B(0), 7 to 8", "stage 0: W(0), 8 to 9",
    ]  # fmt: skip


def test_chunks_of_a_stage_are_in_the_order_of_the_model() -> None:
    actions = bars(ZeroBubbleV(stages=2, micro_batches=3))
    first = [bar.partition(",")[0] for bar in actions if bar.startswith("stage 1")][:4]
    assert [bar.removeprefix("stage 1: ") for bar in first] == [
        "F(0) of chunk 0", "F(0) of chunk 1", "F(1) of chunk 0", "F(1) of chunk 1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_action_has_a_bar(name: str) -> None:
    method = METHODS[name](stages=2, micro_batches=4)
    assert isinstance(method, PipelineMethod)
    assert len(set(bars(method))) == 2 * 3 * 4 * method.pipeline.chunks


def test_numbers_that_do_not_fit_are_left_out() -> None:
    picture = method_drawing(GPipe(stages=2, micro_batches=30)).svg
    texts = re.findall(r"<text [^>]*>(\d+)</text>", picture)
    assert "7" in texts
    assert "29" not in texts


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_are_the_parts_of_the_workers(variant: Variant) -> None:
    method = StreamK(variant=variant)
    expected = []
    for worker, parts in enumerate(method.split.parts):
        time = 0
        for part in parts:
            end = time + part.stop - part.start
            what = f"for worker {part.owner}"
            if part.owner == worker:
                what = f"with {len(part.senders)} sums added"
            expected.append(f"tile {part.tile}, {what}, {time} to {end}")
            time = end
    assert bars(method) == expected


@pytest.mark.parametrize(("period", "warm_up"), [(1, 0), (3, 0), (4, 0), (8, 0), (3, 2)])
def test_steps_and_averages_are_drawn_where_they_are(period: int, warm_up: int) -> None:
    method = LocalSGD(workers=3, period=period, steps=8, warm_up=warm_up)
    drawn = [bar.rpartition(", ")[0] for bar in bars(method)]
    of_each = []
    for step in range(1, 9):
        of_each.append(f"worker, step {step}")
        if step <= warm_up:  # the average is between the gradient and the update
            of_each += [f"gradients averaged in step {step}", f"worker, step {step}"]
        if step - 1 in method.averages:
            of_each.append(f"models averaged after step {step}")
    assert [re.sub(r"worker \d", "worker", bar) for bar in drawn] == 3 * of_each
