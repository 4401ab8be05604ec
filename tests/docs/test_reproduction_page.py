"""docs/reproduction.md is what its script writes: some parts, computed again, are on the page."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from script_module import load

from benchmarks.bars import BarPanel, bars
from benchmarks.paper import (
    DEVICES,
    FIGURE_7,
    FIGURE_9,
    FIGURE_10,
    NAMES,
    SPLITS,
    Gains,
    Stack,
    best_against_best,
    best_two,
    constant,
    constant_share,
    constant_splits,
    geometric_mean,
    is_large,
    mean_gains,
    mlp_pair,
    most_microbatches,
    saved_memory,
    speed_gains,
    split_taus,
    stacked,
)
from docs.render_reproduction import best_row, collective_row, split_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
CHANGED = "the page is not what the code computes: run make reproduction"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load(ROOT / "docs" / "render_reproduction.py")


def row(cells: list[str]) -> str:
    return f"\n| {' | '.join(cells)} |\n"


def test_the_page_begins_as_the_script_does(script: ModuleType) -> None:
    """What is assumed follows the one paragraph about what agrees."""
    assert PAGE.startswith(f"{script.HEAD}\n\n**What agrees, and what does not.** "), CHANGED
    assumed = script.table(["what", "choice", "why"], script.ASSUMED, "---")
    assert "\n\n".join(["", script.BEFORE, assumed, script.AFTER, ""]) in PAGE, CHANGED


def test_points_of_figures_7_and_8(script: ModuleType) -> None:
    """All of them, once: they take most of the time of this page."""
    points = script.all_points()
    assert "\n\n".join(script.figures_7_and_8(points)) in PAGE, CHANGED
    for name, cells in (("as above", script.agreement_row(points)),
                        ("constants", script.constant_row(points))):  # fmt: skip
        assert row([name, *cells]) in PAGE, CHANGED
    gains, saved = speed_gains(points), saved_memory(points)
    first = " ".join(PAGE.partition("**What agrees, and")[2].partition("\n\n")[0].split())
    assert (
        f"Kendall's tau of all 24 gains is {gains.tau:+.2f}. A gain is off by "
        f"{100 * gains.off:.0f} points in the mean, where a constant would be off by "
        f"{100 * gains.constant_off:.0f}. Memory is off by {100 * saved.off:.0f} points, a "
        f"constant by {100 * saved.constant_off:.0f}." in first
    ), CHANGED
    ours, theirs = mean_gains(point for point in points if not is_large(point.model))
    assert theirs == pytest.approx(0.19, abs=0.005)
    assert ours < theirs / 4
    assert {point.model for point in points if is_large(point.model)} == {"opt-175b", "bloom-176b"}


def test_gains_are_compared_with_the_best_constant() -> None:
    gains = Gains.of([0.1, 0.3, 0.2], [0.2, 0.3, 0.7])
    assert gains.tau == pytest.approx(1 / 3)
    assert gains.off == pytest.approx(0.2)
    assert gains.constant == 0.3
    assert gains.constant_off == pytest.approx(0.5 / 3)
    score = constant_share([0.6, 0.8, 0.95])
    assert (score.value, score.near) == (0.7, 2)
    assert score.farthest == pytest.approx(0.25)


def test_one_pair_of_splits_for_all_models_is_counted() -> None:
    """The paper's best two are (2, 4, 4) with (2, 2, 8) for three models, and one more pair."""
    stacks = [Stack(name, (1.0,) * 6, (1.0,) * 6) for name in NAMES if name != "llama-2-70b"]
    assert constant_splits(stacks) == [3, 3]
    taus = split_taus([Stack("opt-175b", (1.0, 1.1, 2.0, 1.2, 4.0, 5.0), (1.0,) * 6)])
    assert taus == [1.0, 0.0]


def test_every_point_is_there_once() -> None:
    parts = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
    for name in NAMES.values():
        for figure in ("Figure 7: throughput", "Figure 8: peak memory"):
            rows = [parts[figure].count(f"\n| {name} | {devices} |") for devices in DEVICES]
            assert rows == [1, 1, 1, 1]
        assert PAGE.count(f"\n| {name} | PrimePar | ours |") == 1


def test_the_page_s_points_are_as_near_as_it_states() -> None:
    """Figure 7: all within 25% of the paper's, the mean within 10%; figure 8: within 10 points."""
    part = PAGE.partition("## Figure 7: throughput")[2].partition("## Figure 8")[0]
    columns = [line.split(" | ")[2:4] for line in part.splitlines() if line.startswith("| ")][2:]
    ratios = [(100 + float(ours.rstrip("%"))) / (100 + float(printed.rstrip("%")))
              for printed, ours in columns]  # fmt: skip
    assert len(ratios) == 24
    assert max(abs(ratio - 1) for ratio in ratios) < 0.25
    assert abs(geometric_mean(ratios) - 1) < 0.1
    part = PAGE.partition("## Figure 8: peak memory")[2].partition("## Figure 9")[0]
    apart = [line.split(" | ")[4] for line in part.splitlines() if line.startswith("| ")][2:]
    assert len(apart) == 24
    assert max(abs(int(points)) for points in apart) < 10


def test_a_constant_is_scored_next_to_the_model() -> None:
    score = constant([1.0, 1.2, 2.0])
    assert (score.value, score.near) == (1.3, 1)
    assert score.farthest == pytest.approx(0.35)
    printed = [ratio for ratios in FIGURE_7.values() for ratio in ratios]
    score = constant(printed)
    assert (score.value, score.near) == (1.3, 24)
    assert "The number 1.3 in the place of every point is within 25% of\n24 of the paper's" in PAGE


def test_best_against_best_is_next_to_the_paper_s() -> None:
    stack = Stack("opt-175b", (4.0, 2.0, None), (3.0, 1.0, 2.0))
    assert best_against_best(stack) == (2.0, 1.46)
    assert "\n| OPT 175B | 1.46 | 1.23 |\n" in PAGE


def test_bars_of_figure_9() -> None:
    for bars_ in FIGURE_9[:3:2]:
        assert row(collective_row(bars_, *mlp_pair(bars_))) in PAGE, CHANGED


def test_bars_of_figure_10() -> None:
    stack = stacked("llama-2-70b")
    assert stack.megatron[0] is None  # 8 key/value heads are not cut in 16
    for cells in (*split_rows(stack), best_row(stack)):
        assert row(cells) in PAGE, CHANGED


def test_the_microbatches_that_the_paper_s_bars_leave() -> None:
    """Megatron's bars of BLOOM 176B: 0.82 and 0.44, (k + 7) / (k + 3) is at least 1.86."""
    ratio = 0.82 / 0.44
    most = most_microbatches(FIGURE_10["bloom-176b"])
    assert (most + 7) / (most + 3) == pytest.approx(ratio)
    assert 1 < most < 2


def test_the_best_two_of_the_paper() -> None:
    best = [
        [SPLITS[split] for split in best_two(printed.primepar)] for printed in FIGURE_10.values()
    ]
    assert best[0] == best[2] == best[4] == [(2, 4, 4), (2, 2, 8)]
    assert best[1] == best[5] == [(2, 1, 16), (2, 2, 8)]


def test_pictures_have_a_bar_for_every_value() -> None:
    panels = [
        BarPanel("one", (("a", (1.0, 0.5)), ("b", (None, 0.25)))),
        BarPanel("two", (("c", (1.0, 2.0)),)),
    ]
    drawn = ElementTree.fromstring(bars(panels, ("x", "y"), 2, 2.0, "some bars"))
    space = "{http://www.w3.org/2000/svg}"
    rects = [rect for rect in drawn.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    assert [rect.findtext(f"{space}title") for rect in rects] == [
        "one, a: 1.00", "one, a: 0.50", "one, b: 0.25", "two, c: 1.00", "two, c: 2.00"
    ]  # fmt: skip
    heights = [float(rect.attrib["height"]) for rect in rects]
    assert heights == [75.0, 37.5, 18.75, 75.0, 150.0]
    for figure, values in ((7, 48), (8, 48), (10, 144 - 2)):
        text = (ROOT / "docs" / "images" / f"reproduction-figure-{figure}.svg").read_text()
        assert text.count("<title>") == values
