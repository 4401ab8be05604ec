"""Closed forms of a pipeline's cost: the stashes that a stage keeps, and the bubble.

Legend: p stages, M micro-batches, v chunks of a stage, s the stage; f, b and w are the times of F,
B and W of one chunk and one micro-batch. The bubble is the longest time from the first to the last
action of a stage, less its work v M (f + b + w). Messages take no time.

    schedule          stashes of stage s                     bubble
    gpipe             M                                      (p - 1) (f + b + w)
    1f1b              min(p - s, M)                          (p - 1) (f + b + w)
    interleaved-1f1b  min((v - 1) p + 2 (p - s) - 1, v M)    (p - 1) (f + b + w)
    zb-h1             min(p, M)                              (p - 1) (f + b) - (min(p, M) - 1) w
    zbv               min(2 p, M + s + 1, 2 M)               2 max(2 p - 1 - M, 0) f

A stash is the input of one chunk for one micro-batch, kept from its F to its W. A chunk of v is a
v-th of the work and of the memory of a stage, so interleaving divides the bubble by v.

The bubbles of the first four with M >= p, and that of ZBV as zero, are published (Narayanan et al.,
SC 2021, sections 2.2 and 4; Qi et al., arXiv 2401.10241, table 1 and section 6). Their forms for
fewer micro-batches are ours, and so are the numbers of stashes for them. That of ZB-H1 needs
w <= f, that of ZBV f = b = w. The emulator confirms all of them; see `python -m benchmarks
pipelines`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from primepar.errors import MethodError
from primepar.partition.pipeline.actions import ScheduleName, chunks_of, least


class ActionTimes(NamedTuple):
    """Times of F, B and W of one chunk and one micro-batch."""

    forward: int = 1
    backward: int = 1
    gradient: int = 1


UNIT = ActionTimes()


def peak_stashes(
    schedule: ScheduleName, stage: int, stages: int, micro_batches: int, chunks: int | None = None
) -> int:
    """The most inputs of chunks that a stage keeps at once, each of one micro-batch."""
    chunks, later = chunks_of(schedule, chunks), stages - stage
    most: int
    match schedule:
        case "gpipe":
            most = micro_batches
        case "1f1b":
            most = least(later, micro_batches)
        case "interleaved-1f1b":
            most = least((chunks - 1) * stages + 2 * later - 1, chunks * micro_batches)
        case "zb-h1":
            most = least(stages, micro_batches)
        case _:
            most = least(least(2 * stages, micro_batches + stage + 1), 2 * micro_batches)
    return most


def bubble(
    schedule: ScheduleName, stages: int, micro_batches: int, times: ActionTimes = UNIT
) -> int:
    """The longest idle time of a stage between its first and its last action.

    Raises `MethodError` for times that the closed form is not for.
    """
    forward, backward, gradient = times
    if schedule == "zbv":
        if len({*times}) > 1:
            raise MethodError(f"zbv: expected equal times of F, B and W, got {_text(times)}")
        return 2 * max(2 * stages - 1 - micro_batches, 0) * forward
    if schedule == "zb-h1":
        if gradient > forward:
            raise MethodError(f"zb-h1: expected a W no longer than F, got {_text(times)}")
        hidden = (min(stages, micro_batches) - 1) * gradient
        return (stages - 1) * (forward + backward) - hidden
    return (stages - 1) * sum(times)


def bubble_share(
    schedule: ScheduleName, stages: int, micro_batches: int, chunks: int | None = None
) -> Fraction:
    """The bubble of equal times over the work of a stage and the bubble together."""
    idle = bubble(schedule, stages, micro_batches)
    return Fraction(idle, 3 * chunks_of(schedule, chunks) * micro_batches + idle)


def _text(times: ActionTimes) -> str:
    return ", ".join(f"{kind}={time}" for kind, time in zip("FBW", times, strict=True))
