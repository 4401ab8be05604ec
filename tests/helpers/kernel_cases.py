"""One phase of a step on one device: a kernel on every block of whole tensors, and the whole again.

What a kernel must keep to is checked at every call: every element of its block written and nothing
else, the blocks that it reads left as they were, and no number read back from the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

import torch

from primepar.distributed.kernels import KERNELS, RETURNED
from primepar.operators import Site, StepInputs, StepSettings
from primepar.schedule.meaning import Box, Phase
from primepar.schedule.signature import Template

Grid = Mapping[str, int]
Slices = tuple[slice, ...]
MARGIN = 64
"""Elements before and after a block, which no kernel may write."""


def working(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Step:
    """What all phases of a step have in common: its settings and inputs, the type, the grid."""

    def __init__(
        self,
        settings: StepSettings | None,
        dtype: torch.dtype = torch.float64,
        grid: Grid | None = None,
        inputs: StepInputs | None = None,
    ) -> None:
        self.settings, self.dtype, self.grid = settings, dtype, grid or {}
        self.inputs = inputs or StepInputs()

    def run(
        self,
        kernel: str,
        signature: str,
        *wholes: torch.Tensor,
        shape: tuple[int, ...],
        name: str = "",
        wide: bool = False,
        reduction: str = "sum",
    ) -> torch.Tensor:
        """What the blocks of a phase, `x[M,K] mean[M] -> y[M,K]`, make: a tensor of `shape`.

        Every tensor is cut evenly along each of its dims.
        """
        *reads, writes = map(Template.parse, signature.replace("-> ", "").split())
        dims = sorted({dim for template in (*reads, writes) for dim in template.dims})
        phase = Phase(f"{name}.{kernel}", tuple(reads), writes, "sum", None, kernel)
        dtype = working(self.dtype) if wide else self.dtype
        whole = torch.full(shape, 0.0 if reduction == "sum" else -torch.inf, dtype=dtype)
        slices = {dim: self.grid.get(dim, 1) for dim in dims}
        for index in product(*map(range, slices.values())):
            sub_operator = dict(zip(dims, index, strict=True))
            boxes = [
                self._box(template, sub_operator, whole.shape)
                for template, whole in zip(reads, wholes, strict=True)
            ]
            written = self._box(writes, sub_operator, shape)
            site = Site(phase, name, tuple(boxes), written, self.settings)
            blocks = [whole[_slices(box)] for whole, box in zip(wholes, boxes, strict=True)]
            block = self._called(site, blocks, dtype)
            into = whole[_slices(written)]
            into.copy_(into + block if reduction == "sum" else torch.maximum(into, block))
        return whole

    def _box(self, template: Template, slices: Mapping[str, int], shape: tuple[int, ...]) -> Box:
        box = []
        for (dim, divisor), size in zip(template.entries, shape, strict=True):
            count = self.grid.get(dim, 1) // divisor if dim else 1
            index = slices[dim] // divisor if dim else 0
            assert size % count == 0
            box.append((index * size // count, (index + 1) * size // count))
        return tuple(box)

    def _called(self, site: Site, blocks: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The block that a kernel returns, or writes in the middle of some memory."""
        before = [block.clone() for block in blocks]
        kernel = KERNELS[str(site.phase.kernel)]
        shape = tuple(end - first for first, end in site.writes)
        if site.phase.kernel in RETURNED:
            made = kernel(site, self.inputs, *blocks)
            on_meta = kernel(site, self.inputs, *(block.to("meta") for block in blocks))
            assert made is not None
            assert on_meta is not None
            assert (made.shape, made.dtype, made.is_contiguous()) == (shape, dtype, True)
            assert (on_meta.shape, on_meta.dtype) == (shape, dtype)
            assert all(map(torch.equal, blocks, before))
            return made
        memory = torch.full((MARGIN + prod(shape) + MARGIN,), torch.nan, dtype=dtype)
        block = memory[MARGIN:-MARGIN].view(shape)
        kernel(site, self.inputs, block, *blocks)
        assert all(map(torch.equal, blocks, before))
        assert not block.requires_grad
        assert block.shape == shape
        assert not block.isnan().any(), "some elements were not written"
        assert memory[:MARGIN].isnan().all()
        assert memory[-MARGIN:].isnan().all()
        meta = block.to("meta")
        kernel(site, self.inputs, meta, *(block.to("meta") for block in blocks))
        assert (meta.shape, meta.dtype) == (block.shape, block.dtype)
        return block


def _slices(box: Box) -> Slices:
    return tuple(slice(*line) for line in box)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of a standard normal distribution, in float64."""
    seeds = torch.Generator().manual_seed(seed + prod(shape))
    return torch.randn(shape, generator=seeds, dtype=torch.float64)


def assert_close(got: torch.Tensor, expected: Any) -> None:
    """To 1e-10 of the largest element in float64, to 1.5 % in bfloat16 or of bfloat16."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    assert got.shape == wanted.shape
    tolerance = 1e-10 if got.dtype == torch.float64 else 0.015
    assert float((got.double() - wanted).abs().max()) <= tolerance * float(wanted.abs().max())
