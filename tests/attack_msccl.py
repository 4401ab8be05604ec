"""Changed MSCCL algorithms, proved and run by threads: `python tests/attack_msccl.py [COUNT]`.

Each algorithm is run many times on numbers, with its thread blocks in random order on shared
memory. What is proved must end right every time: with one slot, and with two where a step that
receives and sends holds its slot. What is refuted must end wrong at least once; a race may have no
effect that is seen. Exit code 1 otherwise.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msccl_cases import ALGORITHMS, AlgorithmText, changed

from primepar.errors import FormatError, ThreadRaceError
from primepar.preflight.importers.msccl import msccl_program
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program

RUNS = 60
Sums = Counter[tuple[int, int]]
"""How often each (GPU, chunk of its input) is in a chunk."""
UNKNOWN: Sums = Counter({(-1, 0): 1})
SENDERS, RECEIVERS = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrc", "rrs", "rrcs")
READS = {"s": "s", "rrc": "s", "rrs": "s", "rrcs": "s", "cpy": "s", "re": "sd"}
"""Kind -> whether it reads its source, its destination, or both."""


def accessed(
    source: tuple[str, int], destination: tuple[str, int], ends: str
) -> list[tuple[str, int]]:
    """The locations of some ends of a step."""
    return [{"s": source, "d": destination}[end] for end in ends]


class ThreadedRun:
    """One run: memory of each GPU, queues of the connections, and where every thread is."""

    def __init__(self, algorithm: AlgorithmText, slots: int, holds: bool) -> None:
        self.algorithm, self.slots, self.holds = algorithm, slots, holds
        self.memory: dict[Any, Sums] = {}
        for gpu in range(len(algorithm.gpus)):
            for chunk in range(algorithm.inputs):
                self.memory[gpu, *self._location(gpu, ("i", chunk))] = Counter({(gpu, chunk): 1})
        self.queues: dict[Any, list[Sums]] = defaultdict(list)
        self.done: set[tuple[int, int, int]] = set()

    def _location(self, gpu: int, location: tuple[str, int]) -> tuple[str, int]:
        in_place = self.algorithm.in_place and self.algorithm.collective == "allreduce"
        return ("i", location[1]) if in_place and location[0] != "s" else location

    def thread(self, gpu: int, number: int) -> Iterator[bool]:
        """Run a thread block; yields False while it waits, True after each access."""
        block = self.algorithm.gpus[gpu][number]
        into = self.queues[gpu, block.sends_to, block.channel]
        out_of = self.queues[block.receives_from, gpu, block.channel]
        for place, step in enumerate(block.steps):
            while step.after[0] >= 0 and (gpu, *step.after) not in self.done:
                yield False
            value: Sums = Counter()
            receives, sends = step.kind in RECEIVERS, step.kind in SENDERS
            if receives:
                while not out_of or (self.holds and sends and len(into) >= self.slots):
                    yield False
                value += out_of[0] if self.holds else out_of.pop(0)
            for location in accessed(step.source, step.destination, READS.get(step.kind, "")):
                value += self.memory.get((gpu, *self._location(gpu, location)), UNKNOWN)
                yield True
            if step.kind not in ("s", "rrs", "nop"):
                self.memory[gpu, *self._location(gpu, step.destination)] = value
                yield True
            while sends and len(into) >= self.slots:
                yield False
            into += [value] if sends else []
            del out_of[: receives and self.holds]
            self.done.add((gpu, number, place))
            yield True

    def ends_right(self, chance: random.Random) -> bool:
        """Run all threads in a random order; whether they end, with the right outputs."""
        threads = [self.thread(gpu, number) for gpu, blocks in enumerate(self.algorithm.gpus)
                   for number in range(len(blocks))]  # fmt: skip
        waiting = 0
        while threads and waiting < 40 * len(threads):
            thread = chance.choice(threads)
            moved = next(thread, None)
            if moved is None:
                threads.remove(thread)
            waiting = 0 if moved is not False else waiting + 1
        return not threads and not any(self.queues.values()) and self._is_right()

    def _is_right(self) -> bool:
        n, count = len(self.algorithm.gpus), self.algorithm.inputs
        for gpu in range(n):
            for chunk in range(self.algorithm.outputs):
                kind = self.algorithm.collective
                if kind == "allgather":
                    want = Counter({divmod(chunk, count): 1})
                else:
                    own_chunk = chunk if kind == "allreduce" else gpu * count // n + chunk
                    want = Counter({(g, own_chunk): 1 for g in range(n)})
                if self.memory.get((gpu, *self._location(gpu, ("o", chunk)))) != want:
                    return False
        return True


def verdict(algorithm: AlgorithmText, folder: Path) -> str:
    """`proved`, `refuted`, `race`, or `refused` for what is no algorithm."""
    path = folder / "algorithm.xml"
    path.write_text(algorithm.text())
    try:
        program = msccl_program(path)
    except ThreadRaceError:
        return "race"
    except FormatError:
        return "refused"
    return verify_program(program, transport=Transport(1)).verdict


def main() -> int:
    """Compare, and print the counts; 1 if a verdict is contradicted."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    counts: Counter[tuple[str, bool]] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for seed in range(count):
            chance = random.Random(seed)
            algorithm = ALGORITHMS[seed % len(ALGORITHMS)]
            for _ in range(seed // len(ALGORITHMS) % 3):
                algorithm = changed(algorithm, chance)
            decided = verdict(algorithm, Path(name))
            right = all(
                ThreadedRun(algorithm, slots, holds).ends_right(random.Random(run))
                for run in range(RUNS)
                for slots, holds in ((1, False), (2, True))
            )
            counts[decided, right] += 1
            if (decided == "proved") != right and (decided, right) != ("race", True):
                wrong += 1
                print(f"seed {seed}: {decided}, runs end {'right' if right else 'wrong'}")
    for (decided, right), number in sorted(counts.items()):
        print(f"{decided:<8} runs end {'right' if right else 'wrong'} {number:>6}")
    print(f"{count} algorithms: verdicts that runs contradict: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
