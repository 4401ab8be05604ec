"""docs/reproduction.md is what its script writes: some points, computed anew, stand there."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from test_tutorials import load

from benchmarks.paper.blocks import geometric_mean, point
from benchmarks.paper.mlp import mlp_pair
from benchmarks.paper.pipelines import best_two, most_microbatches, stacked
from benchmarks.paper.printed import DEVICES, FIGURE_9, FIGURE_10, NAMES, SPLITS
from benchmarks.pictures.bars import BarPanel, bars

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
ANEW = "the page is not what the code computes: run make reproduction"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load(ROOT / "docs" / "render_reproduction.py")


def row(cells: list[str]) -> str:
    return f"\n| {' | '.join(cells)} |\n"


def test_the_page_begins_as_the_script_does(script: ModuleType) -> None:
    assumed = script.table(["what", "choice", "why"], script.ASSUMED, "---")
    assert PAGE.startswith("\n\n".join([script.HEAD, assumed, script.AFTER])), ANEW


@pytest.mark.parametrize(("model", "devices"), [("opt-6.7b", 4), ("opt-175b", 8)])
def test_points_of_figures_7_and_8(script: ModuleType, model: str, devices: int) -> None:
    own = point(model, devices)
    assert row(script.speed_row(own)) in PAGE, ANEW
    assert row(script.share_row(own)) in PAGE, ANEW


def test_every_point_is_there_once() -> None:
    parts = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
    for name in NAMES.values():
        for figure in ("Figure 7: throughput", "Figure 8: peak memory"):
            found = [parts[figure].count(f"\n| {name} | {devices} |") for devices in DEVICES]
            assert found == [1, 1, 1, 1]
        assert PAGE.count(f"\n| {name} | PrimePar | ours |") == 1


def test_the_page_s_points_are_as_near_as_it_says() -> None:
    """Figure 7: all within 25% of the paper's, the mean within 10%; figure 8: within 10 points."""
    part = PAGE.partition("## Figure 7: throughput")[2].partition("## Figure 8")[0]
    found = [line.split(" | ")[2:4] for line in part.splitlines() if line.startswith("| ")][2:]
    ratios = [float(ours) / float(printed) for printed, ours in found]
    assert len(ratios) == 24
    assert max(abs(ratio - 1) for ratio in ratios) < 0.25
    assert abs(geometric_mean(ratios) - 1) < 0.1
    part = PAGE.partition("## Figure 8: peak memory")[2].partition("## Figure 9")[0]
    apart = [line.split(" | ")[4] for line in part.splitlines() if line.startswith("| ")][2:]
    assert len(apart) == 24
    assert max(abs(int(points)) for points in apart) < 10


def test_bars_of_figure_9(script: ModuleType) -> None:
    for bars_ in FIGURE_9[:3:2]:
        assert row(script.collective_row(bars_, *mlp_pair(bars_))) in PAGE, ANEW


def test_bars_of_figure_10(script: ModuleType) -> None:
    own = stacked("llama-2-70b")
    assert own.megatron[0] is None  # 8 key/value heads are not cut in 16
    for cells in script.split_rows(own):
        assert row(cells) in PAGE, ANEW


def test_the_microbatches_that_the_paper_s_bars_leave() -> None:
    """Megatron's bars of BLOOM 176B: 0.82 and 0.44, (k + 7) / (k + 3) is at least 1.86."""
    ratio = 0.82 / 0.44
    most = most_microbatches(FIGURE_10["bloom-176b"])
    assert (most + 7) / (most + 3) == pytest.approx(ratio)
    assert 1 < most < 2


def test_the_best_two_of_the_paper() -> None:
    found = [[SPLITS[at] for at in best_two(each.primepar)] for each in FIGURE_10.values()]
    assert found[0] == found[2] == found[4] == [(2, 4, 4), (2, 2, 8)]
    assert found[1] == found[5] == [(2, 1, 16), (2, 2, 8)]


def test_pictures_have_a_bar_for_every_value() -> None:
    panels = [
        BarPanel("one", (("a", (1.0, 0.5)), ("b", (None, 0.25)))),
        BarPanel("two", (("c", (1.0, 2.0)),)),
    ]
    drawn = ElementTree.fromstring(bars(panels, ("x", "y"), 2, 2.0, "some bars"))
    space = "{http://www.w3.org/2000/svg}"
    found = [each for each in drawn.iter(f"{space}rect") if each.find(f"{space}title") is not None]
    assert [each.findtext(f"{space}title") for each in found] == [
        "one, a: 1.00", "one, a: 0.50", "one, b: 0.25", "two, c: 1.00", "two, c: 2.00"
    ]  # fmt: skip
    heights = [float(each.attrib["height"]) for each in found]
    assert heights == [75.0, 37.5, 18.75, 75.0, 150.0]
    for figure, values in ((7, 48), (8, 48), (10, 144 - 2)):
        text = (ROOT / "docs" / "images" / f"reproduction-figure-{figure}.svg").read_text()
        assert text.count("<title>") == values
