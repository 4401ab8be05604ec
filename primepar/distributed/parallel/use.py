"""What a training loop needs of a parallelized module: its rows, clipping, ordinary states."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from primepar.distributed.parallel.module import boundaries_in
from primepar.errors import ShapeError


def local_rows(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a full batch, whose first dim are sequences.

    Ranks that share the columns of a row have the same part. Raises `ShapeError` if the groups of
    ranks do not divide the batch.
    """
    boundaries = boundaries_in(module)
    groups, group = boundaries.row_groups, boundaries.row_group(dist.get_rank())
    if len(batch) % groups:
        raise ShapeError(
            f"batch: expected a multiple of {groups} sequences, one part for each group of ranks, "
            f"got {len(batch)}: take {-(-len(batch) // groups) * groups}"
        )
    return batch.chunk(groups)[group]


def clip_grad_norm(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; returns the norm.

    A collective call. `torch.nn.utils.clip_grad_norm_` refuses DTensors mixed with other tensors.
    """
    boundaries_in(module)
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    squares = torch.stack([square for gradient in gradients for square in _squares(gradient)])
    total = squares.sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local.mul_(factor.to(local.dtype))
    return norm


def _squares(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield this rank's share of the sum of squares: every copy counts as one of all copies."""
    local, copies = gradient, dist.get_world_size()
    if isinstance(gradient, DTensor):
        local, sizes = gradient.to_local(), gradient.device_mesh.shape
        pairs = zip(sizes, gradient.placements, strict=True)
        copies = prod(size for size, placement in pairs if isinstance(placement, Replicate))
    wide = torch.promote_types(local.dtype, torch.float32)
    yield local.to(wide).square().sum() / copies


def full_state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of the module with full tensors, on the CPU of rank 0; empty elsewhere.

    A collective call. Names and shapes are those of the module before `parallelize`, so that
    `load_state_dict` of an unchanged module takes it.
    """
    boundaries_in(module)
    states: dict[str, torch.Tensor] = {}
    for name, entry in module.state_dict().items():
        whole = entry.full_tensor() if isinstance(entry, DTensor) else entry
        if dist.get_rank() == 0:
            states[name] = whole.detach().cpu()
    return states
