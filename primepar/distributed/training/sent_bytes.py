"""What every rank sends in a training step, in bytes, for the log."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import chain

import torch
from torch import distributed as dist

from primepar.distributed.runtime.executor import Executor
from primepar.distributed.training.launch import World

RankBytes = tuple[float, ...]
"""Bytes that each rank sends, in the order of ranks."""


class SentBytes:
    """The bytes of the kinds of steps of a run; each kind is gathered at its first step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[Hashable, tuple[RankBytes, RankBytes]] = {}

    def of(
        self, kind: Hashable, executors: Callable[[], Iterable[Executor]]
    ) -> tuple[RankBytes, RankBytes]:
        """Return the bytes of linear operators and of the rest in a step of some kind.

        `executors` gives what runs in such a step. A collective call at the first step of a kind.
        """
        if kind not in self._known:
            self._known[kind] = self._everyone(executors())
        return self._known[kind]

    def _everyone(self, executors: Iterable[Executor]) -> tuple[RankBytes, RankBytes]:
        counted = {"linear": 0.0, "other": 0.0}
        for part, elements, itemsize in chain(*(executor.sent for executor in executors)):
            counted[part] += float(elements * itemsize)
        sent_2 = torch.tensor(list(counted.values()), dtype=torch.float64, device=self.world.device)
        everyone = [sent_2] * self.world.size
        if self.world.size > 1:
            everyone = [torch.empty_like(sent_2) for _ in everyone]
            dist.all_gather(everyone, sent_2)
        linear, other = zip(*(rank_2.tolist() for rank_2 in everyone), strict=True)
        return linear, other
