"""Scores: medians of paired differences from the floor, over those of DTensor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

SAMPLES = 2000


class Score(Struct, frozen=True):
    """A ratio of medians, and its 95% interval by a bootstrap over rounds."""

    ratio: float
    low: float
    high: float


def score(ours: Sequence[float], theirs: Sequence[float], floor: Sequence[float]) -> Score:
    """Seconds of ours above the floor over theirs above it; entry i of each is from round i."""
    pairs = [
        (mine - least, reference - least)
        for mine, reference, least in zip(ours, theirs, floor, strict=True)
    ]
    draw = random.Random(0)
    ratios = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(SAMPLES))
    return Score(_ratio(pairs), ratios[int(0.025 * SAMPLES)], ratios[int(0.975 * SAMPLES) - 1])


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    above, reference = (median(values) for values in zip(*pairs, strict=True))
    return above / reference if reference > 0 else float("inf")
