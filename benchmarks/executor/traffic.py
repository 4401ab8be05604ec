"""Counts the collectives that torch starts, and their bytes, as rings send them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from msgspec import Struct
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.executor.contender import Contender

_PASSES = {"all_reduce": 2, "allreduce": 2, "all_gather": 1, "allgather": 1, "reduce_scatter": 1}
"""Start of an operator's name -> how many times a ring carries the full tensor."""


class StepTraffic(Struct, frozen=True):
    """Calls of collectives on all ranks, and bytes that all ranks send, in a step."""

    collectives: int
    sent: float


class CollectiveCounter(TorchDispatchMode):
    """Counts on one rank; the ranks of a collective are those of the world."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.sent = 0, Fraction(0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # its own operators on local tensors come next
        result = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        if "c10d" in space:
            self._count(name.lstrip("_"), args, result)
        return result

    def _count(self, name: str, args: Any, result: Any) -> None:
        passes = next((count for start, count in _PASSES.items() if name.startswith(start)), None)
        if passes is None:
            return
        ranks = dist.get_world_size()
        whole = max(_bytes(args), _bytes(result))
        self.calls += 1
        self.sent += Fraction(passes * (ranks - 1) * whole, ranks)


def _bytes(values: Any) -> int:
    """Bytes of the largest tensor in nested values."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, list | tuple):
        return max(map(_bytes, values), default=0)
    return 0


def counted(contender: Contender) -> StepTraffic:
    """Count one step; a collective call."""
    with CollectiveCounter() as counter:
        contender.step()
    sums = torch.tensor([counter.calls, float(counter.sent)], dtype=torch.float64)
    dist.all_reduce(sums)
    return StepTraffic(int(sums[0]), float(sums[1]))
