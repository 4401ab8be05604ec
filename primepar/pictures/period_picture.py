"""A picture of local SGD: steps as columns, workers as rows, and a bar for every average.

It is drawn from the events of a run. A cell is a step of a worker, and a bar an all-reduce: of the
models, or in a synchronous step of the gradients. Runs are drawn below one another, so that
several periods can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from primepar.pictures import svg
from primepar.schedule.events import Event
from primepar.schedule.program_method import ProgramMethod

Runs = Mapping[str, Sequence[Event]]
"""Title of a run, `H = 4` -> its events."""

WIDTH, HEIGHT, GAP, BAR = 30.0, 18.0, 10.0, 6.0
"""Of a cell; between two cells of a row, where a bar is; of a bar."""
LEFT, TOP, BELOW = 70.0, 30.0, 46.0
"""Room for the names of workers, for a title, and below a run for the numbers of steps."""
STEP, MODELS, GRADIENTS = svg.under_white(0.58), svg.under_white(0.05), svg.under_white(0.33)
_STEP = re.compile(r"(\d+)\.update")
_AVERAGE = re.compile(r"(model|mean)\.(\d+)\[")


def period_picture(runs: Runs) -> str:
    """Return the SVG of some runs of local SGD."""
    body: list[str] = []
    top, right = 0.0, 0.0
    for title, events in runs.items():
        body += _run(title, events, top)
        workers = 1 + max(event.rank for event in events)
        steps = len({step for _, step in _steps(events)})
        top += TOP + workers * (HEIGHT + GAP / 2) + BELOW
        right = max(right, LEFT + steps * (WIDTH + GAP))
    body += _legend(top)
    label = f"local SGD, steps as columns and workers as rows: {', '.join(runs)}"
    return svg.picture(max(right, 420.0) + svg.MARGIN, top + 20, body, label)


def run_picture(method: ProgramMethod, events: Sequence[Event]) -> str:
    """Return the SVG of one run of local SGD."""
    return period_picture({method.text: events})


def _run(title: str, events: Sequence[Event], top: float) -> Iterator[str]:
    """The cells and bars of one run, below `top`."""
    yield svg.text(title, LEFT, top + 18, font_weight="bold")
    for worker in range(1 + max(event.rank for event in events)):
        y = _y(top, worker) + HEIGHT - 5
        yield svg.text(f"worker {worker}", LEFT - svg.MARGIN, y, text_anchor="end")
    for worker, step in _steps(events):
        tip = svg.title(f"worker {worker}, step {step + 1}")
        yield svg.element("rect", tip, x=_x(step), y=_y(top, worker), width=WIDTH, height=HEIGHT,
                          rx=2, fill=STEP)  # fmt: skip
    for event in events:
        match = _AVERAGE.match(event.block)
        if event.op != "all_reduce" or match is None:
            continue
        step = int(match[2]) - (match[1] == "model")
        what = "models" if match[1] == "model" else "gradients"
        tip = svg.title(f"{what} averaged after step {step + 1}, worker {event.rank}")
        colour = MODELS if what == "models" else GRADIENTS
        x = _x(step) + WIDTH + (GAP - BAR) / 2
        yield svg.element("rect", tip, x=x, y=_y(top, event.rank) - GAP / 4, width=BAR,
                          height=HEIGHT + GAP / 2, fill=colour)  # fmt: skip
    bottom = max(_y(top, event.rank) for event in events) + HEIGHT + 16
    for step in sorted({step for _, step in _steps(events)}):
        yield svg.text(str(step + 1), _x(step) + WIDTH / 2, bottom, text_anchor="middle")


def _steps(events: Sequence[Event]) -> list[tuple[int, int]]:
    """(worker, step) of every update."""
    matches = ((event.rank, _STEP.fullmatch(event.phase)) for event in events)
    return [(rank, int(match[1])) for rank, match in matches if match is not None]


def _legend(top: float) -> Iterator[str]:
    items = (
        (STEP, "step of a worker"),
        (MODELS, "average of the models"),
        (GRADIENTS, "average of the gradients"),
    )
    for place, (colour, words) in enumerate(items):
        x = LEFT + place * 165
        yield svg.element("rect", x=x, y=top - 4, width=10, height=10, fill=colour)
        yield svg.text(words, x + 15, top + 5)


def _x(step: int) -> float:
    return LEFT + step * (WIDTH + GAP)


def _y(top: float, worker: int) -> float:
    return top + TOP + worker * (HEIGHT + GAP / 2)
