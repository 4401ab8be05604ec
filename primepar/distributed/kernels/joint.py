"""Kernels of several phases at once, where torch has one function for them.

The executor calls one where a rank computes these phases one after another, from the same blocks
and in one dtype. It writes the same blocks as the kernels of the phases would.
Legend: R rows and C columns of a block, which has whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from primepar.distributed.kernels.norm import scale_of
from primepar.operators import Site

JointKernel = Callable[..., None]
"""`kernel(site, intos, *blocks)`, with the site of the last phase."""


@dataclass(frozen=True)
class Joint:
    """The kernels of adjacent phases, and what each of them reads.

    A letter is a block from outside, and a number the block that the phase of this place writes.
    `left_out` are places of blocks that are not written, so nothing else may read these.
    """

    kernels: tuple[str, ...]
    reads: tuple[tuple[str | int, ...], ...]
    run: JointKernel
    left_out: tuple[int, ...] = ()

    def given(self, reads: Sequence[Sequence[str]], writes: Sequence[str]) -> list[str] | None:
        """Return the blocks from outside, if blocks with these names depend on each other so."""
        known: dict[str | int, str] = dict(enumerate(writes))
        for marks, names in zip(self.reads, reads, strict=True):
            if len(marks) != len(names):
                return None
            if any(known.setdefault(m, name) != name for m, name in zip(marks, names, strict=True)):
                return None
        return [name for mark, name in known.items() if isinstance(mark, str)]


def layer_norm(
    site: Site,
    intos: Sequence[torch.Tensor],
    x_RC: torch.Tensor,
    weight_C: torch.Tensor,
    bias_C: torch.Tensor,
) -> None:
    """Write statistics, normalized rows, and these times the weight plus the bias."""
    into_2R1, normed_RC, y_RC = intos
    C, epsilon = x_RC.shape[1], site.step.model.epsilon
    ones_C, zeros_C = _numbers(C, 1, x_RC), _numbers(C, 0, x_RC)
    made_RC, mean_R1, inverse_R1 = torch.native_layer_norm(x_RC, [C], ones_C, zeros_C, epsilon)
    normed_RC.copy_(made_RC)
    torch.addcmul(bias_C, made_RC, weight_C, out=y_RC)
    into_2R1[0] = mean_R1
    torch.pow(inverse_R1, -2, out=into_2R1[1]).sub_(epsilon)


def layer_norm_backward(
    site: Site,
    intos: Sequence[torch.Tensor],
    dy_RC: torch.Tensor,
    normed_RC: torch.Tensor,
    weight_C: torch.Tensor,
    moments_2R1: torch.Tensor,
) -> None:
    """Write the gradients of weight, bias and rows; the sums are left out.

    The normalized rows have mean 0 and deviation 1, so torch gets these as their statistics. The
    gradient that it returns is then divided by the deviation of the rows.
    """
    into_C, into_bias_C, _, dx_RC = intos
    R, C = normed_RC.shape
    mean_R1, inverse_R1 = (_numbers(R, value, dy_RC)[:, None] for value in (0, 1))
    gradient_RC, weight_gradient_C, bias_gradient_C = torch.ops.aten.native_layer_norm_backward(
        dy_RC, normed_RC, [C], mean_R1, inverse_R1, weight_C, weight_C, [True, True, True]
    )
    into_C.copy_(weight_gradient_C)
    into_bias_C.copy_(bias_gradient_C)
    torch.mul(gradient_RC, scale_of(site, moments_2R1), out=dx_RC)


@lru_cache(maxsize=64)
def _filled(size: int, value: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((size,), value, dtype=dtype, device=device)


def _numbers(size: int, value: int, like: torch.Tensor) -> torch.Tensor:
    """Return a line of equal numbers."""
    return _filled(size, value, like.dtype, like.device)


JOINT = (
    Joint(
        ("norm.moments", "norm.normalize", "norm.forward"),
        (("x",), ("x", 0), (1, "w", "b")),
        layer_norm,
    ),
    Joint(
        ("norm.gradient", "bias.gradient", "norm.backward.sums", "norm.backward"),
        (("dy", "n"), ("dy",), ("dy", "w", "n"), ("dy", "w", "n", "m", 2)),
        layer_norm_backward,
        left_out=(2,),
    ),
)
"""All of them."""
