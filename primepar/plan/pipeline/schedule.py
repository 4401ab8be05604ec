"""The 1F1B schedule: some forwards per stage, then one forward and one backward alternating.

Stage i of p keeps the stashes of at most p - i microbatches (Narayanan et al., SC 2021, section
2.2). So memory does not grow with the number k of microbatches. The bubble is (p - 1) / k of the
work.
"""

from __future__ import annotations

from collections.abc import Sequence

from primepar.partition.pipeline.formulas import UNIT, peak_stashes
from primepar.partition.pipeline.formulas import bubble as bubble_of


def bubble(stages: int, microbatches: int) -> float:
    """Idle time of a stage over its work, where all stages take equal time."""
    return bubble_of("1f1b", stages, microbatches) / (microbatches * sum(UNIT))


def in_flight(stage: int, stages: int, microbatches: int) -> int:
    """Maximum number of microbatches whose stash a stage keeps."""
    return peak_stashes("1f1b", stage, stages, microbatches)


def step_seconds(stages: Sequence[float], microbatches: int) -> float:
    """Seconds of a training step, by the seconds of each stage for one microbatch.

    The first microbatch passes through all stages; the slowest stage then takes the others one by
    one. That is exact where all stages take equal time: p - 1 + k times that.
    """
    return sum(stages) + (microbatches - 1) * max(stages)
