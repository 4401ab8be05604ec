"""Times of work that all ranks do at once, and the request to stop that all of them obey."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist

from primepar.distributed.runtime.mesh import Mesh

REPEATS = 7
"""Runs of which the median is taken."""
SECONDS = 0.02
"""How long one run goes on, at least: so often the work is done in it."""
MOST = 1000
"""Most times that work is done in one run."""
RUNS = REPEATS + 2
"""Runs of each work, with the first two, which do not count."""


Work = Callable[[], object]


class Stopped(Exception):  # noqa: N818  no error
    """A rank was asked to stop."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Stopwatch:
    """Takes the time of work on all ranks; `asked` gives the signal that this rank has got, or 0.

    After each run `done` is called.
    """

    def __init__(
        self,
        mesh: Mesh,
        asked: Callable[[], int],
        done: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mesh, self._asked, self._done, self._clock = mesh, asked, done, clock

    def __call__(self, work: Work) -> float:
        """Seconds of one call, as `each`."""
        return self.each([work])[0]

    def each(self, works: Sequence[Work]) -> list[float]:
        """Seconds of one call of each, the slowest rank's in each run, the median of several runs.

        The runs go by turns, so that a busy moment of the machine meets few runs of any work. A
        collective call. Raises `Stopped` on all ranks where one was asked to stop.
        """
        times = [self._times(work) for work in works]
        rounds = [
            [self._run(work, count) / count for work, count in zip(works, times, strict=True)]
            for _ in range(REPEATS)
        ]
        return [median(own) for own in zip(*rounds, strict=True)]

    def _times(self, work: Work) -> int:
        """How often a work is done in one run; it is done twice to see."""
        self._run(work, 1)
        first = self._run(work, 1)
        return max(1, round(min(MOST, SECONDS / max(first, SECONDS / MOST))))

    def _run(self, work: Work, times: int) -> float:
        self.mesh.barrier()
        start = self._clock()
        for _ in range(times):
            work()
        self.mesh.synchronize()
        own = (self._clock() - start, float(self._asked()))
        told = torch.tensor(own, dtype=torch.float64, device=self.mesh.device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        seconds, signal = told.tolist()
        if signal:
            raise Stopped(int(signal))
        self._done()
        return float(seconds)
