"""The picture of a pipeline: a row for each stage, a box for each action, time to the right.

A box has the colour of its kind and the number of its micro-batch. The chunks of a stage have
shades of that colour. What is empty between the boxes of a stage is the bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from primepar.pictures import svg
from primepar.schedule.events import Event
from primepar.schedule.program_method import ProgramMethod


class _KindStyle(NamedTuple):
    """Letter of a kind of action, and the hues of the first and the last chunk of a stage."""

    letter: str
    first: float
    last: float


KINDS = {
    "forward": _KindStyle("F", 0.60, 0.74),
    "backward": _KindStyle("B", 0.06, -0.06),
    "gradient": _KindStyle("W", 0.40, 0.26),
}
"""Last word of a phase -> how its actions are drawn."""
_LEFT, _TOP, _ROW, _BOX = 64, 64, 30, 24
_WIDTH, _NARROWEST, _WIDEST = 1000, 7.0, 26.0
_DIGIT = 8.0


class ActionBox(NamedTuple):
    """One action: its stage, its phase, chunk of the stage and micro-batch, and its times."""

    stage: int
    phase: str
    chunk: int
    micro_batch: int
    start: float
    end: float


def pipeline_gantt(method: ProgramMethod, events: Sequence[Event]) -> str:
    """Return the SVG of a pipeline's run, of which `events` are all."""
    boxes = action_boxes(events)
    end = max(box.end for box in boxes)
    stages = 1 + max(box.stage for box in boxes)
    chunks = 1 + max(box.chunk for box in boxes)
    unit = min(_WIDEST, max(_NARROWEST, (_WIDTH - _LEFT - 16) / end))
    body = [svg.text(f"{method.text}, {end:g} units of time", 8, 20), *_legend(chunks)]
    body += _ticks(end, unit, stages)
    for stage in range(stages):
        middle = _TOP + stage * _ROW + _BOX / 2
        body.append(svg.text(f"stage {stage}", 8, middle + 4))
        right = _LEFT + end * unit
        body.append(svg.element("line", x1=_LEFT, y1=middle, x2=right, y2=middle, stroke=svg.GREY,
                                stroke_opacity=0.3))  # fmt: skip
    body += [drawn for box in boxes for drawn in _box(box, unit, chunks)]
    width, height = _LEFT + end * unit + 16, _TOP + stages * _ROW + 8
    return svg.picture(width, height, body, f"Pipeline {method.text}: actions of every stage")


def action_boxes(events: Sequence[Event]) -> list[ActionBox]:
    """The actions among the events: products of a layer. Other phases are no actions."""
    layers: dict[int, list[int]] = {}
    actions = []
    for event in events:
        layer, _, phase = event.phase.rpartition(".")
        if event.op == "compute" and phase in KINDS:
            number = int(layer.removeprefix("layer"))
            known = layers.setdefault(event.rank, [])
            if number not in known:
                known.append(number)
            actions.append((event, phase, number))
    return [
        ActionBox(event.rank, phase, sorted(layers[event.rank]).index(number),
                  event.sub_operator["M"], event.start, event.end)
        for event, phase, number in actions
    ]  # fmt: skip


def _colour(phase: str, chunk: int, chunks: int) -> str:
    style = KINDS[phase]
    return svg.under_white(style.first + (style.last - style.first) * chunk / max(chunks - 1, 1))


def _box(box: ActionBox, unit: float, chunks: int) -> list[str]:
    """The box of one action, with its micro-batch where the number fits."""
    x, y = _LEFT + box.start * unit, _TOP + box.stage * _ROW
    width = (box.end - box.start) * unit
    letter, number = KINDS[box.phase].letter, str(box.micro_batch)
    chunk = f" of chunk {box.chunk}" if chunks > 1 else ""
    tooltip = f"stage {box.stage}: {letter}({number}){chunk}, {box.start:g} to {box.end:g}"
    drawn = [
        svg.element(
            "rect", svg.title(tooltip), x=x + 0.5, y=y, width=width - 1, height=_BOX, rx=2,
            fill=_colour(box.phase, box.chunk, chunks),
        )
    ]  # fmt: skip
    if len(number) * _DIGIT <= width:
        drawn.append(svg.text(number, x + width / 2, y + 16, fill=svg.WHITE, text_anchor="middle"))
    return drawn


def _legend(chunks: int) -> list[str]:
    body, x = [], float(_LEFT)
    for phase, (letter, _, _) in KINDS.items():
        for chunk in sorted({0, chunks - 1}):
            words = f"{letter} {phase}" if chunk == 0 else f"chunk {chunk}"
            fill = _colour(phase, chunk, chunks)
            body.append(svg.element("rect", x=x, y=30, width=12, height=12, rx=2, fill=fill))
            body.append(svg.text(words, x + 17, 40))
            x += 32 + 7 * len(words)
    return body


def _ticks(end: float, unit: float, stages: int) -> list[str]:
    """Times above the boxes, with a rule through all stages at each."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000, 10000, 10**9)
                if step * unit >= 40)  # fmt: skip
    bottom, body = _TOP + stages * _ROW, []
    for number in range(int(end / step) + 1):
        x = _LEFT + number * step * unit
        body.append(svg.text(str(number * step), x, _TOP - 8, text_anchor="middle", font_size=10))
        body.append(svg.element("line", x1=x, y1=_TOP - 4, x2=x, y2=bottom, stroke=svg.GREY,
                                stroke_opacity=0.2))  # fmt: skip
    return body
