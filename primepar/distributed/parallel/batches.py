"""What a training loop needs of a parallelized module, and checks of what the ranks feed it.

Ranks that share the rows of a batch must be given the same rows, and have then the same gradient of
a parameter that stays whole. Ranks that have different rows have a mean each, and gradients are
averaged over the groups, which is the mean of all only if each group counts equally many labels.
What breaks one of these rules is wrong without a sign:

    two groups, labels that are counted: 3 and 1      mean of means  (a+b+c)/6 + d/2
                                                      mean of all    (a+b+c+d)/4
    weights of their losses: 3 * 2/4 and 1 * 2/4      gives the mean of all
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from math import prod
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from primepar.distributed.parallel.layer_plan import Boundaries
from primepar.errors import ConfigError, MeshError, PlanError, ShapeError

TOLERANCE = 1e-2
"""Relative difference of two sums; a gradient of a part of the heads differs by far more."""
PATIENCE = 60.0
"""Seconds that ranks wait for one another before a state is gathered."""
EVALUATION_PATIENCE = 600.0
"""The same before an evaluation, as one rank may have a state to write first."""
_meetings: Counter[str] = Counter()
LABELS = (torch.int64, torch.int32)
"""Dtypes of classes; other labels are numbers, of which all count."""
STATE = "_primepar_batches"
"""Attribute of a parallelized module with its `BatchCheck`."""
SAVE = "save_pretrained"
"""The method by which transformers' modules are saved."""


untraced: Callable[..., Any] = torch.compiler.disable
"""Messages of a program are posted by a list of functions, which torch.compile is not to trace."""


class PartOfWorld:
    """What a parallelized module has: a copy of it would not average gradients of norms."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise `ConfigError`."""
        raise ConfigError(
            "module: expected one that is not parallelized to copy or to pickle, got one that is: "
            "copy it before parallelize, or keep full_state_dict(module)"
        )


class BatchCheck(PartOfWorld):
    """Called before every forward: compares the rows once, and the counts of labels each time.

    The counts of one step are compared at the next one, so that no step waits for them.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries, self.is_weighted = boundaries, False
        self._are_compared = boundaries.stream.ranks == boundaries.row_groups
        self._counts: tuple[Any, list[torch.Tensor]] | None = None
        self._had_gradients = True

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `ShapeError` or `PlanError` on all ranks."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not self._are_compared and tensors:
            self._are_compared = True
            self._compare_rows(tensors)
        # Messages of an evaluation on one rank would meet those of a training step on the others.
        has_gradients = torch.is_grad_enabled()
        if self._had_gradients and not has_gradients:
            held, rank = self.boundaries.stream.held, dist.get_rank()
            sharing = [other for other, rows in enumerate(held) if rows == held[rank]]
            what = "forward without gradients"
            meet(what, sharing, EVALUATION_PATIENCE, "evaluate and generate on every rank")
        self._had_gradients = has_gradients
        # By place only in training: groups may generate in different numbers of calls.
        second = args[1] if len(args) > 1 and has_gradients else None
        labels = kwargs.get("labels", kwargs.get("targets", second))
        has_groups = self.boundaries.row_groups > 1 and not self.is_weighted
        if has_groups and isinstance(labels, torch.Tensor) and labels.dtype in LABELS:
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
                        for rank, count in enumerate(torch.cat(counts).tolist())}  # fmt: skip
            if len(set(by_group.values())) > 1:
                listed = " and ".join(str(by_group[group]) for group in sorted(by_group))
                raise PlanError(
                    "labels: expected equally many that are counted in each group of rows, got "
                    f"{listed}: multiply the loss by loss_weight(module, labels), and its mean is "
                    "that of all labels"
                )
        local = (labels >= 0).sum().view(1)  # torch leaves out -100, some loops -1
        counts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        self._counts = dist.all_gather(counts, local, async_op=True), counts


class GradientCheck:
    """Called with the first gradient of a parameter, on all ranks.

    A parameter that is used inside a region has there the gradient of this rank's columns only. A
    mask that ranks draw from different seeds has a similar effect. Both are wrong without a sign,
    so the sums of the gradient and of its absolute values are compared.
    """

    def __init__(self, name: str, boundaries: Boundaries) -> None:
        self.name, self.stream = name, boundaries.stream
        self._is_checked = boundaries.stream.ranks == boundaries.row_groups

    def __call__(self, gradient: torch.Tensor) -> None:
        """Raise `PlanError` on all ranks if ranks with the same rows disagree."""
        if self._is_checked:
            return
        self._is_checked = True
        wide = gradient.detach().to(torch.promote_types(gradient.dtype, torch.float32))
        sums = torch.stack([wide.sum(), wide.abs().sum()])
        by_rank = [torch.empty_like(sums) for _ in range(self.stream.ranks)]
        dist.all_gather(by_rank, sums)
        first: dict[object, torch.Tensor] = {}
        for rank, held in enumerate(self.stream.held):
            expected = first.setdefault(held, by_rank[rank])
            if (by_rank[rank] - expected).abs().max() > TOLERANCE * expected[1]:
                raise PlanError(
                    f"{self.name}: expected the same gradient on ranks with the same rows, got "
                    f"another on rank {rank}: use it outside of regions, and give these ranks one "
                    "torch.manual_seed for dropout"
                )


def batches_of(module: nn.Module) -> BatchCheck:
    """Return what a parallelized module is fed by. Raises `ConfigError` for another module."""
    checked = getattr(module, STATE, None)
    if checked is None:
        raise ConfigError(
            f"{type(module).__name__}: expected a parallelized module, got one that is not: call "
            "parallelize first"
        )
    known: BatchCheck = checked
    return known


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


def loss_weight(module: nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Return the factor of this rank's mean loss where groups of rows count unequally many labels.

    A collective call, in every step. `labels` are those that the loss counts, of this rank's
    rows; transformers' language models count `labels[:, 1:]`. With the factor, gradients are those
    of the mean over all labels that are not negative.
    """
    batches = batches_of(module)
    batches.is_weighted = True
    local = (labels >= 0).sum()
    total = local.clone()
    dist.all_reduce(total)
    # Each rank of a group adds the group's labels: ranks / total is groups / labels of all groups.
    return local * batches.boundaries.stream.ranks / total


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
    """Return a copy of the module's state with full tensors, on the CPU of rank 0; else empty.

    A collective call. Names and shapes are those of the module before `parallelize`, so that
    `load_state_dict` of an unchanged module takes it. Raises `MeshError` after `PATIENCE` seconds
    if some rank does not call it.
    """
    batches_of(module)
    meet("full_state_dict")
    states: dict[str, torch.Tensor] = {}
    for name, entry in module.state_dict().items():
        whole = entry.full_tensor() if isinstance(entry, DTensor) else entry
        if dist.get_rank() == 0:
            states[name] = whole.detach().to("cpu", copy=True)
    return states


def save_with_state(
    module: nn.Module, folder: object, *others: Any, state_dict: Any = None, **named: Any
) -> Any:
    """The `save_pretrained` of a parallelized module of transformers.

    Raises `ConfigError` without a state: transformers reads the memory of a parameter, and a
    DTensor has none.
    """
    if state_dict is None:
        raise ConfigError(
            "save_pretrained: expected the full state, got none: call full_state_dict(module) on "
            "every rank, and save_pretrained(folder, state_dict=states) on rank 0"
        )
    save: Callable[..., Any] = getattr(type(module), SAVE)
    return save(module, folder, *others, state_dict=state_dict, **named)


def meet(
    what: str,
    ranks: Sequence[int] | None = None,
    patience: float | None = None,
    advice: str = "call it on every rank, and save what rank 0 gets",
) -> None:
    """Raise `MeshError` if some rank does not come: who gathers alone would wait without end.

    All ranks meet, unless others are given, and wait for `PATIENCE` seconds, unless for more.
    """
    patience = patience or PATIENCE
    store = dist.distributed_c10d._get_default_store()
    _meetings[what] += 1
    key = f"primepar/{what}/{_meetings[what]}"
    store.set(f"{key}/{dist.get_rank()}", "here")
    missing = list(range(dist.get_world_size()) if ranks is None else ranks)
    end = time.monotonic() + patience
    while missing := [rank for rank in missing if not store.check([f"{key}/{rank}"])]:
        if time.monotonic() > end:
            raise MeshError(
                f"{what}: expected all ranks to call it, got none on rank "
                f"{', '.join(map(str, missing))} in {patience:g} s: {advice}"
            )
        time.sleep(0.01)
