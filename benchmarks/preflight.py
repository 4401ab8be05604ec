"""How long does the capture of a step on a pipeline x data x tensor mesh take, and which memory?

`python -m benchmarks preflight --stages 4 --data 4 --tensor 4 --layers 32` captures the step of
`benchmarks/preflight_step.py` on 64 ranks and proves it. There is a head of `--width` elements for
each data and tensor rank; with `--shrink` no large tensor is computed. Memory is the largest sum
over all processes, each page counted once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Annotated

from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Column, bench, cpu_seconds

STEP = Path(__file__).parent / "preflight_step.py"
SAMPLED = 0.25
"""Seconds between two looks at the memory, or 20 times as long as a look takes."""


class CaptureRow(BenchRow, frozen=True):
    """A capture and its proof: seconds, and MiB of all processes."""

    ranks: Annotated[int, Column("ranks")]
    mesh: Annotated[str, Column("mesh")]
    verdict: Annotated[str, Column("verdict")]
    instructions: Annotated[int, Column("instructions")]
    capture: Annotated[float, Column("capture s", ".1f")]
    proof: Annotated[float, Column("proof s", ".1f")]
    cpu: Annotated[float, Column("CPU s", ".1f")]
    peak: Annotated[float, Column("peak MiB", ".0f")] = 0.0
    load: Annotated[float, Column("load", ".1f")] = 0.0


def captured(
    stages: int, tensor: int, data: int, layers: int, width: int, shrink: bool
) -> CaptureRow:
    """Capture and prove the step in this process."""
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    start = perf_counter()
    ranks = stages * tensor * data
    arguments = [str(number) for number in (stages, tensor, data, layers, width)]
    recorded, _ = capture_torch(STEP, arguments, ranks, limit=3600, shrink=shrink)
    middle = perf_counter()
    program = program_of(recorded, str(STEP))
    report = verdict_of(program, recorded, str(STEP), timeout=3600)
    count = sum(map(len, program.programs))
    mesh = f"{stages} stages x {data} x {tensor}, {layers} layers"
    return CaptureRow(ranks, mesh, report.verdict, count,
                      middle - start, perf_counter() - middle, cpu_seconds())  # fmt: skip


def resident(root: int) -> float:
    """MiB of a process and of those that it forked; a page of several counts once."""
    total = 0
    for process in (root, *_children(root)):
        with suppress(OSError, TypeError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total / 1024


def _children(process: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def measure(capture: Callable[[], CaptureRow]) -> CaptureRow:
    """Capture in a process of its own, and watch its memory."""
    peak = 0.0
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        inside = pool.submit(capture)
        while not inside.done():
            start = perf_counter()
            peak = max(peak, *(resident(child) for child in _children(os.getpid())))
            wait([inside], max(SAMPLED, 20 * (perf_counter() - start)))
    return replace(inside.result(), peak=peak, load=os.getloadavg()[0])


def preflight(
    stages: int = 8, tensor: int = 8, data: int = 1, layers: int = 8, width: int = 2,
    shrink: bool = False,
) -> Iterator[Case]:  # fmt: skip
    capture = partial(captured, stages, tensor, data, layers, width, shrink)
    yield f"{stages} x {data} x {tensor}", partial(measure, capture)


if __name__ == "__main__":
    bench(preflight)
