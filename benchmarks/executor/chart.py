"""The chart of a run: CPU above the floor of every contender, over DTensor's, with intervals."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.executor.report import headline
from benchmarks.executor.results import BenchmarkRun, ProblemResult
from primepar.pictures import svg

LEFT, WIDTH, ROW, TITLE, TOP, RIGHT = 160.0, 420.0, 20.0, 44.0, 52.0, 70.0
MOST = 2.5
"""Ratio at the right end; longer bars are cut off there, and their value is printed."""
OURS, OTHERS = "#3f51b5", "#9aa4b2"


def chart(run: BenchmarkRun) -> str:
    """An SVG with a panel for each problem; the line is DTensor."""
    body = [
        svg.text("CPU seconds of a step above the floor, over DTensor's", 8.0, 18.0,
                 font_weight="bold"),
        svg.text(headline(run).partition("\n")[2], 8.0, 36.0, font_size=11,
                 **({} if run.load.idle else {"fill": svg.RED})),
    ]  # fmt: skip
    y = TOP
    for result in run.problems:
        body += _panel(result, y)
        y += TITLE + ROW * len(_shown(result))
    return svg.picture(LEFT + WIDTH + RIGHT, y + 8, body, "CPU of the executor and of others")


def _shown(result: ProblemResult) -> list[str]:
    """Contenders other than the floors."""
    return [entry.name for entry in result.contenders if not entry.name.startswith("floor:")]


def _panel(result: ProblemResult, top: float) -> Iterator[str]:
    names = _shown(result)
    yield svg.text(result.problem, 8.0, top + 20, font_weight="bold")
    for number, name in enumerate(names):
        yield from _bar(result, name, top + 30 + number * ROW)
    x = LEFT + WIDTH / MOST
    yield svg.element("line", x1=x, x2=x, y1=top + 26, y2=top + 30 + ROW * len(names),
                      stroke=svg.GREY, stroke_width=1.0)  # fmt: skip


def _bar(result: ProblemResult, name: str, y: float) -> Iterator[str]:
    score = result.cpu(name)
    end, low, high = (
        LEFT + WIDTH * min(MOST, max(0.0, value)) / MOST
        for value in (score.ratio, score.low, score.high)
    )
    colour = OURS if name in result.plans else OTHERS
    note = f"{name}: {score.ratio:.2f} [{score.low:.2f}, {score.high:.2f}]"
    yield svg.text(name, LEFT - 8, y + 12, text_anchor="end", font_size=11)
    yield svg.element("rect", svg.title(note), x=LEFT, y=y + 2, width=end - LEFT, height=ROW - 7,
                      fill=colour)  # fmt: skip
    yield svg.element("line", x1=low, x2=high, y1=y + ROW / 2 - 1.5, y2=y + ROW / 2 - 1.5,
                      stroke=svg.GREY, stroke_width=2.0)  # fmt: skip
    yield svg.text(f"{score.ratio:.2f}", max(end, high) + 6, y + 12, font_size=11)
