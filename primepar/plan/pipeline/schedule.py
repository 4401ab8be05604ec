"""The time of 1F1B, plain and interleaved, and how many micro-batches a stage keeps meanwhile.

Stage i of p keeps the stashes of at most p - i micro-batches (Narayanan et al., SC 2021, section
2.2). So memory does not grow with the number k of micro-batches. The bubble is (p - 1) / k of the
work. With v chunks of the model on every stage it is (p - 1) / (v k), and stashes are more.
"""

from __future__ import annotations

from collections.abc import Sequence

from primepar.partition.pipeline.formulas import UNIT
from primepar.partition.pipeline.formulas import bubble as bubble_of


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Idle time of a stage over its work, where all chunks take equal time."""
    return bubble_of("1f1b", stages, microbatches) / (chunks * microbatches * sum(UNIT))


def step_seconds(stages: Sequence[float], microbatches: int, chunks: int = 1) -> float:
    """Seconds of a training step, by the seconds of each stage for one micro-batch.

    The first micro-batch passes through all stages; the slowest stage then takes the others one by
    one. That is exact where all stages take equal time t: k t + (p - 1) t. With chunks a stage
    begins and ends after a chunk of the others: k t + (p - 1) t / v.
    """
    slowest = max(stages)
    return microbatches * slowest + (sum(stages) - slowest) / chunks
