"""Measures the time of work that all ranks do together; a stop request ends it on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist

from primepar.distributed.runtime.mesh import Mesh

REPEATS = 7
"""Timed runs of each work; the result is their median."""
SECONDS = 0.02
"""Duration of one run, in seconds: shorter work is repeated until a run takes this long."""
MOST = 1000
"""Largest number of repetitions in one run."""
RUNS = REPEATS + 3
"""Runs of each work, including three that count repetitions."""


Work = Callable[[], object]
Clock = Callable[[], float]


class Stopped(Exception):  # noqa: N818  no error
    """A rank received a signal that asks it to stop."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Stopwatch:
    """Measures the time of work on all ranks.

    `asked` returns the signal that this rank has received, or 0. `done` is called after each run.
    The ranks are on one machine: their clocks are the same. With `shared_cores` there are more
    ranks than cores, and the CPU seconds of all ranks count, over the cores.
    """

    def __init__(
        self,
        mesh: Mesh,
        asked: Callable[[], int],
        done: Callable[[], None],
        shared_cores: int | None = None,
        clocks: tuple[Clock, Clock] = (time.perf_counter, time.process_time),
    ) -> None:
        self.mesh, self._asked, self._done = mesh, asked, done
        self._shared_cores, (self._now, self._used) = shared_cores, clocks

    def __call__(self, work: Work) -> float:
        """Return the seconds of one call of `work`; see `seconds`."""
        return self.seconds([work])[0]

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """Return the seconds of one call of each work: the median over several runs.

        A run lasts from the first rank's start to the last rank's end. Where ranks share cores, it
        is the work of all of them that takes the time: while one waits for a message, another one
        has the core. One rank's own time would be too short, if the ranks took turns. The runs of
        the works alternate, so that other load on the machine disturbs only a few runs of each
        work. A collective call. Raises `Stopped` on all ranks if one rank was asked to stop.
        """
        repetitions = [self._repetitions(work) for work in works]
        rounds = [
            [self._run(work, count) / count for work, count in zip(works, repetitions, strict=True)]
            for _ in range(REPEATS)
        ]
        return [median(work_seconds) for work_seconds in zip(*rounds, strict=True)]

    def _repetitions(self, work: Work) -> int:
        """Return how often `work` is repeated in one run; the first call only warms up."""
        self._run(work, 1)
        count = 1
        for _ in range(2):
            seconds = self._run(work, count) / count
            count = max(1, round(min(MOST, SECONDS / max(seconds, SECONDS / MOST))))
        return count

    def _run(self, work: Work, repetitions: int) -> float:
        self.mesh.barrier()
        start, used = self._now(), self._used()
        for _ in range(repetitions):
            work()
        self.mesh.synchronize()
        local = (self._used() - used, start, self._now(), self._asked())
        table = torch.zeros((self.mesh.ranks, len(local)), dtype=torch.float64,
                            device=self.mesh.device)  # fmt: skip
        table[self.mesh.rank] = torch.tensor(local, dtype=torch.float64)
        dist.all_reduce(table)
        by_rank, starts, ends, signals = table.T.tolist()
        if max(signals):
            raise Stopped(int(max(signals)))
        self._done()
        if self._shared_cores is not None:
            return float(sum(by_rank) / self._shared_cores)
        return float(max(ends) - min(starts))
