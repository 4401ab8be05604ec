"""Seconds of a training step by the order in which its program posts transfers.

The paper adds the time of all parts (equations 7 and 10). A step's program posts the sum of a
gradient once it is there and waits for it before the update, so that sums run during backward. Both
are accounts of the same terms; this one is a relaxation of the simulator: a device computes one
operator after another, and its links carry one sum after another.

    compute   forward              | backward: head  fc2  fc1  qkv    embedding |          update
    links                          |                 head    fc2      fc1   qkv   embedding|

With B seconds of backward and R of sums a step is no shorter than F + max(B, R) + U, and so than
F + (1 - h) B + h R + U for every h from 0 to 1. These are sums over operators. So the segmented
dynamic programme finds the least of them exactly, and the largest of the least is a lower bound of
all plans. Example: B 3 s and R 5 s: h = 1 states the bound, 5 s, and h = 0 only 3 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Amount = TypeVar("Amount", float, NDArray[np.float64])
SHARES = (0.0, 0.5, 1.0)
"""The values of h for which plans are searched."""


def weighed(terms: Mapping[str, Amount], share: float) -> Amount:
    """The seconds of an operator's terms of which the sum over a plan is a lower bound."""
    forward = terms["forward"] + terms["forward_communication"]
    backward = terms["compute"] + terms["communication"] - forward
    return (
        forward
        + (1 - share) * backward
        + share * (terms["reduction"] - terms["starting"])
        + terms["update"]
    )
