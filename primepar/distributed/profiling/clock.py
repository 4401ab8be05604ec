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
TURNS = 25
"""Calls of each work where works take turns; the result is their median."""


Work = Callable[[], object]
Clock = Callable[[], float]


class Stopped(Exception):  # noqa: N818  no error
    """A rank received a signal that asks it to stop."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Stopwatch:
    """Measures the time of work on all ranks.

    `asked` returns the signal that this rank has received, or 0. `done` is called with the number
    of runs that were done. The ranks are on one machine: their clocks are the same. `cores` is the
    number of cores that they have, None where they work on GPUs. `clocks` has the time, and the CPU
    seconds of this process.
    """

    def __init__(
        self,
        mesh: Mesh,
        asked: Callable[[], int],
        done: Callable[[float], None],
        cores: int | None = None,
        clocks: tuple[Clock, Clock] = (time.perf_counter, time.process_time),
    ) -> None:
        self.mesh, self._asked, self._done = mesh, asked, done
        self._cores, (self._now, self._used) = cores, clocks

    def seconds(self, works: Sequence[Work]) -> list[float]:
        """Return the seconds of one call of each work: the median over several runs.

        A run lasts from the first rank's start to the last rank's end. Where ranks share cores, it
        is the CPU seconds of all of them over the cores: while one waits for a message, another
        one has the core. The runs of the works alternate, so that other load on the machine
        disturbs only a few runs of each work. A collective call. Raises `Stopped` on all ranks if
        one rank was asked to stop.
        """
        repetitions = [self._repetitions(work) for work in works]
        rounds = [
            [self._run(work, count) / count for work, count in zip(works, repetitions, strict=True)]
            for _ in range(REPEATS)
        ]
        return [median(work_seconds) for work_seconds in zip(*rounds, strict=True)]

    def in_turn(self, works: Sequence[Work]) -> list[float]:
        """Return the seconds of one call of each work: no messages, and the works take turns.

        So a work finds in the caches what another one has left, as in a step. On a CPU the CPU
        seconds of all ranks count, over the cores that they have; on GPUs it is as `seconds`.
        """
        if self._cores is None:
            return self.seconds(works)
        table = torch.zeros((TURNS, len(works)), dtype=torch.float64)
        for turn in range(-1, TURNS):  # the first only warms up
            for number, work in enumerate(works):
                used = self._used()
                work()
                table[turn, number] = self._used() - used
            self._of_all((self._asked(),))
            self._done(RUNS * len(works) / (1 + TURNS))
        dist.all_reduce(table)
        cores = min(self._cores, self.mesh.ranks)
        return [float(seconds) / cores for seconds in table.median(dim=0).values]

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
        ended = self._now(), self._used() - used
        _, starts, ends, used_by_rank = self._of_all((self._asked(), start, *ended))
        self._done(1.0)
        if self._cores is not None and self._cores < self.mesh.ranks:
            return sum(used_by_rank) / self._cores
        return max(ends) - min(starts)

    def _of_all(self, numbers: tuple[float, ...]) -> list[list[float]]:
        """Return each of some numbers of all ranks; the first is the signal of a stop request."""
        table = torch.zeros((self.mesh.ranks, len(numbers)), dtype=torch.float64)
        table[self.mesh.rank] = torch.tensor(numbers, dtype=torch.float64)
        table = table.to(self.mesh.device)
        dist.all_reduce(table)
        by_number: list[list[float]] = table.T.tolist()
        if max(by_number[0]):
            raise Stopped(int(max(by_number[0])))
        return by_number
