"""The linear operator: its dims, its tensors and its three phases (PrimePar, equation 1).

Dims: B batch, M sequence, N input hidden, K output hidden. Tensors: I input, W weight, O output;
dI, dW, dO are their gradients and have the same dims.

    forward   O[B,M,K]  = I[B,M,N] W[N,K]       summed over N
    backward  dI[B,M,N] = dO[B,M,K] W[N,K]^T    summed over K
    gradient  dW[N,K]   = I[B,M,N]^T dO[B,M,K]  summed over B and M
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from primepar.errors import ShapeError

Dim = str
DIMS: tuple[Dim, ...] = ("B", "M", "N", "K")
Phase = str
PHASES: tuple[Phase, ...] = ("forward", "backward", "gradient")
Index = tuple[int, ...]
"""Which block of a tensor: one slice index for each of its dims."""


class Product(NamedTuple):
    """What one phase multiplies: two tensors read, one summed into."""

    reads: tuple[str, str]
    writes: str


PRODUCTS: dict[Phase, Product] = {
    "forward": Product(("I", "W"), "O"),
    "backward": Product(("dO", "W"), "dI"),
    "gradient": Product(("I", "dO"), "dW"),
}

OUTPUTS = frozenset(product.writes for product in PRODUCTS.values())
"""Tensors that are sums of products: O, dI and dW."""

HOMES = ("I", "W", "O")
"""Tensors with a resident layout; a gradient has the layout of its tensor."""

_TENSOR_DIMS: dict[str, tuple[Dim, ...]] = {
    "I": ("B", "M", "N"),
    "W": ("N", "K"),
    "O": ("B", "M", "K"),
}


def tensor_dims(tensor: str) -> tuple[Dim, ...]:
    """Dims of a tensor, a gradient having those of the tensor it belongs to."""
    return _TENSOR_DIMS[tensor.removeprefix("d")]


@dataclass(frozen=True)
class Linear:
    """Shape of one linear operator in elements; `B` is 1 where the batch is merged into `M`."""

    M: int
    N: int
    K: int
    B: int = 1

    @classmethod
    def smallest(cls, grid: Mapping[Dim, int]) -> Linear:
        """The operator with two elements for each slice of a grid."""
        return cls(**{dim: 2 * count for dim, count in grid.items()})

    def size(self, dim: Dim) -> int:
        """Number of elements along `dim`."""
        return int(getattr(self, dim))

    def block_shape(self, tensor: str, grid: Mapping[Dim, int]) -> tuple[int, ...]:
        """Shape of one block of `tensor` under `grid`, B left out where the grid does not name it.

        Raises `ShapeError` if a dim is not a multiple of its number of slices.
        """
        self.check_divides(grid)
        return tuple(
            self.size(dim) // grid.get(dim, 1)
            for dim in tensor_dims(tensor)
            if dim in grid or dim != "B"
        )

    def check_divides(self, grid: Mapping[Dim, int]) -> None:
        """Raise `ShapeError`, with how to pad, if the grid does not divide the shape."""
        for dim, slices in grid.items():
            size = self.size(dim)
            if size < 1 or size % slices:
                padded = max(slices, -(-size // slices) * slices)
                raise ShapeError(
                    f"dim {dim}: expected a positive multiple of its {slices} slices, got {size}: "
                    f"pad {dim} with zeros to {padded}"
                )
        if "B" not in grid and self.B != 1:
            raise ShapeError(
                f"dim B: expected 1, as this sequence does not split B, got {self.B}: "
                f"merge B into M, M={self.B * self.M}"
            )


_BLOCK = re.compile(r"(d?[IWO])\[(\d+(?:,\d+)*)\]('?)")


def block_name(tensor: str, index: Index) -> str:
    """Name of a block in a program, `I[0,1]`."""
    return f"{tensor}[{','.join(map(str, index))}]"


def scratch_name(block: str) -> str:
    """Name of the buffer for a product that joins `block` after the partial sum has arrived."""
    return block + "'"


@dataclass(frozen=True)
class BlockName:
    """The parts of a block name; `scratch` marks a product that has not joined its sum yet."""

    tensor: str
    index: Index
    scratch: bool


def parse_block(name: str) -> BlockName | None:
    """Parse a name of this grammar; None for a name that means nothing to linear operators."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    return BlockName(match[1], tuple(int(part) for part in match[2].split(",")), bool(match[3]))


def is_wide_sum(tensor: str, steps: int) -> bool:
    """Return whether a sum of several sub-operators is held and sent in float32 if not complete.

    That is for half precision, where a sum over the `steps` of a primitive would be rounded at each
    of them. It is also for gradients of weights, as in Megatron. What one collective alone adds,
    such as O of a row-parallel operator, has the model's dtype, as it has there.
    """
    return tensor == "dW" or steps > 1
