"""The pictures of methods that a timeline of instructions does not show best, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from primepar.pictures.period_picture import run_picture
from primepar.pictures.pipeline_gantt import pipeline_gantt
from primepar.pictures.tile_rows import method_picture
from primepar.schedule.events import Event
from primepar.schedule.program_method import ProgramMethod

MethodPicture = Callable[[ProgramMethod, Sequence[Event]], str]
"""From a method with its sizes, and the events of its emulated run, to SVG."""
METHOD_PICTURES: Mapping[str, MethodPicture] = {
    "gpipe": pipeline_gantt,
    "1f1b": pipeline_gantt,
    "interleaved-1f1b": pipeline_gantt,
    "zb-h1": pipeline_gantt,
    "zbv": pipeline_gantt,
    "stream-k": method_picture,
    "local-sgd": run_picture,
}
