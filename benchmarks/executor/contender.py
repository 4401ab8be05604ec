"""What is compared: forward and backward of one problem, run by one library in one partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import distributed as dist

Wholes = dict[str, torch.Tensor]
"""Tensors in full: `y` and `dx`, or `loss`; by `d` and its name the gradient of a parameter."""
BOUND = 1e-4
"""Largest error over the largest element: sums of some thousand float32 products in any order."""


class Contender(Protocol):
    """One rank's part. Its input, output gradient and parameters are there from the start.

    `step` does one forward and backward, and keeps nothing of the step before. `resident` are this
    rank's input, output gradient and parameters. `wholes` gathers what the last step computed: rank
    0 gets the full tensors, others may get anything.
    """

    name: str

    def step(self) -> None: ...

    def resident(self) -> Iterable[torch.Tensor]: ...

    def wholes(self) -> Wholes: ...


def check(contender: Contender, expected: Wholes | None) -> None:
    """Run a step and compare it on rank 0 with `expected`. Raises `SystemExit` if it is wrong."""
    contender.step()
    got = contender.wholes()
    if dist.get_rank() or expected is None:
        return
    if got.keys() != expected.keys():
        raise SystemExit(f"{contender.name}: expected {sorted(expected)}, got {sorted(got)}")
    for name, whole in expected.items():
        difference = got[name].double().reshape(whole.shape) - whole
        error = float(difference.abs().max() / whole.abs().max())
        if not error <= BOUND:
            raise SystemExit(f"{contender.name}: {name} is off by {error:.1e} of its largest")
