"""What a training loop needs of a parallelized module: its rows, clipping, ordinary states."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from math import prod

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from primepar.distributed.parallel.batch_check import IGNORED, weight_of
from primepar.distributed.parallel.module import batches_of
from primepar.errors import MeshError, ShapeError

PATIENCE = 60.0
"""Seconds that ranks wait for one another before a state is gathered."""
_meetings = count()


def local_rows(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a full batch, whose first dim are sequences.

    Ranks that share the columns of a row have the same part. Raises `ShapeError` if the groups of
    ranks do not divide the batch.
    """
    boundaries = batches_of(module).boundaries
    groups, group = boundaries.row_groups, boundaries.row_group(dist.get_rank())
    if len(batch) % groups:
        raise ShapeError(
            f"batch: expected a multiple of {groups} sequences, one part for each group of ranks, "
            f"got {len(batch)}: take {-(-len(batch) // groups) * groups}"
        )
    return batch.chunk(groups)[group]


def loss_weight(module: nn.Module, labels: torch.Tensor, ignored: int = IGNORED) -> torch.Tensor:
    """Return the factor of this rank's mean loss where groups of rows count unequally many labels.

    A collective call, in every step. `labels` are those that the loss counts, of this rank's
    rows; transformers' language models count `labels[:, 1:]`. With the factor, gradients are those
    of the mean over all labels that are not `ignored`.
    """
    batches = batches_of(module)
    batches.is_weighted = True
    return weight_of(batches.boundaries, labels, ignored)


def clip_grad_norm(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; returns the norm.

    A collective call. `torch.nn.utils.clip_grad_norm_` refuses DTensors mixed with other tensors.
    """
    batches_of(module)
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
    `load_state_dict` of an unchanged module takes it. Raises `MeshError` after `PATIENCE` seconds
    if some rank does not call it.
    """
    batches_of(module)
    _meet("full_state_dict")
    states: dict[str, torch.Tensor] = {}
    for name, entry in module.state_dict().items():
        whole = entry.full_tensor() if isinstance(entry, DTensor) else entry
        if dist.get_rank() == 0:
            states[name] = whole.detach().cpu()
    return states


def _meet(what: str) -> None:
    """Raise `MeshError` if some rank does not come: who gathers alone would wait without end."""
    store = dist.distributed_c10d._get_default_store()
    key = f"primepar/{what}/{next(_meetings)}"
    store.set(f"{key}/{dist.get_rank()}", "here")
    end, missing = time.monotonic() + PATIENCE, list(range(dist.get_world_size()))
    while missing := [rank for rank in missing if not store.check([f"{key}/{rank}"])]:
        if time.monotonic() > end:
            raise MeshError(
                f"{what}: expected all ranks to call it, got none on rank "
                f"{', '.join(map(str, missing))} in {PATIENCE:g} s: call it on every rank, and "
                "save what rank 0 gets"
            )
        time.sleep(0.01)
