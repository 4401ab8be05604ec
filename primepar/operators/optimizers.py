"""The optimizers that a step may end with, and what each keeps of a parameter between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Optimizer = Literal["adamw", "sgd"]


class AdamWConstants(Struct, frozen=True):
    """The constants of AdamW; the defaults are those of GPT-3 (Brown et al., 2020, appendix B).

    `beta1` and `beta2` are the weights of the old moments. `decay` is that of weights.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    decay: float = 0.1


ADAMW = AdamWConstants()

MOMENTS: Mapping[Optimizer, Mapping[str, str]] = {
    "adamw": {"m": "first.update", "v": "second.update"},
    "sgd": {},
}
"""Optimizer -> suffix of each moment of a parameter, `<name>.m` -> the kernel that updates it."""

MASTER = "master"
"""Suffix of the copy of a parameter, `<name>.master`, that is updated in its place.

It has the precision of sums, float32 at least. The parameter is the copy, rounded."""


def state_suffixes(optimizer: Optimizer, masters: bool) -> tuple[str, ...]:
    """Return the suffixes of the tensors of a parameter between steps; the first is its own, "".

    All others are of wide tensors: the copy if there are `masters`, and the moments.
    """
    kept = [MASTER] if masters else []
    return ("", *(f".{suffix}" for suffix in (*kept, *MOMENTS[optimizer])))
