"""Checks of what the ranks feed a parallelized module, and the weight of a rank's loss.

Ranks that share the rows of a batch must be given the same rows. Ranks that have different rows
have a mean each, and gradients are averaged over the groups, which is the mean of all only if each
group counts equally many labels. Both are wrong without a sign:

    two groups, labels that are not -100: 3 and 1     mean of means  (a+b+c)/6 + d/2
                                                      mean of all    (a+b+c+d)/4
    weights of their losses: 3 * 2/4 and 1 * 2/4      gives the mean of all
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from primepar.distributed.parallel.boundaries import Boundaries
from primepar.errors import PlanError, ShapeError

IGNORED = -100
"""The label that torch's `cross_entropy` leaves out."""


_disable: Callable[..., Any] = torch.compiler.disable


class BatchCheck:
    """Called before every forward: compares the rows once, and the counts of labels each time.

    The counts of one step are compared at the next one, so that no step waits for them.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries, self.is_weighted = boundaries, False
        self._are_compared = boundaries.stream.ranks == boundaries.row_groups
        self._counts: tuple[Any, torch.Tensor] | None = None

    @_disable
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `ShapeError` or `PlanError` on all ranks."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not self._are_compared and tensors:
            self._are_compared = True
            self._compare_rows(tensors)
        labels = kwargs.get("labels")
        has_groups = self.boundaries.row_groups > 1 and not self.is_weighted
        if has_groups and isinstance(labels, torch.Tensor):
            self._compare_counts(labels)

    def _compare_rows(self, tensors: list[torch.Tensor]) -> None:
        digest = sha256()
        for given in tensors:
            digest.update(
                given.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
        hashed = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        hashed = hashed.to(tensors[0].device)
        by_rank = [torch.empty_like(hashed) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, hashed)
        first: dict[object, int] = {}
        for rank, held in enumerate(self.boundaries.stream.held):
            same = first.setdefault(held, rank)
            if not by_rank[rank].equal(by_rank[same]):
                raise ShapeError(
                    f"forward: expected the same rows on ranks {same} and {rank}, which share "
                    "them, got others: give each rank local_rows(module, batch), with one batch on "
                    "all ranks"
                )

    def _compare_counts(self, labels: torch.Tensor) -> None:
        if self._counts is not None:
            work, counts = self._counts
            work.wait()
            by_group = {self.boundaries.row_group(rank): count
                        for rank, count in enumerate(counts.tolist())}  # fmt: skip
            if len(set(by_group.values())) > 1:
                listed = " and ".join(str(by_group[group]) for group in sorted(by_group))
                raise PlanError(
                    "labels: expected equally many that are counted in each group of rows, got "
                    f"{listed}: multiply the loss by loss_weight(module, labels), and its mean is "
                    "that of all labels"
                )
        local = (labels != IGNORED).sum().view(1)
        counts = local.new_empty(dist.get_world_size())
        self._counts = dist.all_gather_into_tensor(counts, local, async_op=True), counts


def weight_of(boundaries: Boundaries, labels: torch.Tensor, ignored: int) -> torch.Tensor:
    """The factor of this rank's mean loss with which the average over groups is that of all labels.

    A collective call. `labels` are those that the loss counts, of this rank's rows.
    """
    local = (labels != ignored).sum()
    total = local.clone()
    dist.all_reduce(total)
    # Each rank of a group adds the group's labels: ranks / total is groups / labels of all groups.
    return local * boundaries.stream.ranks / total
