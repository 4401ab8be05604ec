"""What is compared: one MLP, forward and backward, run by one library under one partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import distributed as dist
from torch.nn import functional

from benchmarks.executor.shapes import MlpShape

Wholes = dict[str, torch.Tensor]
"""Tensors in full: `y`, `dx`, and by `d` and its name the gradient of a parameter, [N, K]."""
DW1, DW2 = "dblocks.0.fc1.weight", "dblocks.0.fc2.weight"


class Contender(Protocol):
    """One rank's part of an MLP. Its input, output gradient and weights are there from the start.

    `step` does one forward and backward, and keeps nothing of the step before. `wholes` gathers
    what the last step computed: rank 0 gets the full tensors, others may get anything.
    """

    name: str

    def step(self) -> None: ...

    def wholes(self) -> Wholes: ...


@dataclass(frozen=True)
class MlpData:
    """The full tensors of an MLP, the same on every rank."""

    x: torch.Tensor
    dy: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor

    @classmethod
    def of(cls, shape: MlpShape) -> MlpData:
        """Draw the tensors of a shape."""
        draw, rows, hidden, inner = _Draw(), shape.rows, shape.hidden, shape.inner
        return cls(
            draw(rows, hidden, 1.0),
            draw(rows, hidden, 1.0),
            draw(hidden, inner, hidden**-0.5),
            draw(inner, hidden, inner**-0.5),
        )

    def tensors(self) -> Wholes:
        """The tensors by the names of a model's first block."""
        weights = {"blocks.0.fc1.weight": self.w1, "blocks.0.fc2.weight": self.w2}
        return {"x": self.x, "dy": self.dy, **weights}

    def expected(self) -> Wholes:
        """What one device computes in float64."""
        x, w1, w2 = (part.double().requires_grad_() for part in (self.x, self.w1, self.w2))
        y = activation(x @ w1) @ w2
        dx, dw1, dw2 = torch.autograd.grad(y, (x, w1, w2), self.dy.double())
        return {"y": y.detach(), "dx": dx, DW1: dw1, DW2: dw2}


class _Draw:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self.generator) * scale


def activation(x: torch.Tensor) -> torch.Tensor:
    """The activation of every contender: GELU by its tanh approximation."""
    return functional.gelu(x, approximate="tanh")


def check(contender: Contender, expected: Wholes | None) -> None:
    """Run a step and compare it on rank 0 with float64. Raises `SystemExit` if it is wrong.

    The bound is 1e-4 of the largest element: sums of some thousand float32 products in any order.
    """
    contender.step()
    got = contender.wholes()
    if dist.get_rank() or expected is None:
        return
    for tensor, whole in expected.items():
        error = float((got[tensor].double() - whole).abs().max() / whole.abs().max())
        if error > 1e-4:
            raise SystemExit(f"{contender.name}: {tensor} is off by {error:.1e} of its largest")
