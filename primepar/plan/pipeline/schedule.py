"""1F1B: every stage begins with some forwards, then takes one forward and one backward by turns.

Stage i of p keeps the stashes of p - i microbatches at most (Narayanan et al., SC 2021, section
2.2), so that memory does not grow with their number, and the bubble is (p - 1) / k of the work.
"""

from __future__ import annotations

from collections.abc import Sequence


def bubble(stages: int, microbatches: int) -> float:
    """Idle time of a stage over its work, where all stages take the same."""
    return (stages - 1) / microbatches


def in_flight(stage: int, stages: int, microbatches: int) -> int:
    """Microbatches of which a stage keeps the stash at most."""
    return min(stages - stage, microbatches)


def step_seconds(stages: Sequence[float], microbatches: int) -> float:
    """Time of a step by the time that each stage takes for forward and backward of a microbatch.

    The first microbatch goes through all stages, and the slowest takes the others one by one. That
    is exact where all take the same: (p - 1 + k) times it.
    """
    return sum(stages) + (microbatches - 1) * max(stages)


def dealt(layers: int, stages: int) -> list[int]:
    """Layers of every stage: as many each, or one more, those last, but for the very last stage.

    The embedding and the head come on top of those of the first and the last.
    """
    own, more = divmod(layers, stages)
    inner = [at for at in range(stages) if 0 < at < stages - 1][::-1]
    places = set([*inner, 0, stages - 1][:more])
    return [own + (at in places) for at in range(stages)]
