"""What a run of the benchmark records, and how contenders are scored by it."""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from benchmarks.executor.machine import MachineLoad
from benchmarks.executor.planned import ListFacts
from benchmarks.executor.problem import Kind
from benchmarks.executor.score import Score, score

FLOOR, REFERENCE, MEMORY_REFERENCE = "floor:", "dtensor", "dtensor-sp"


class ContenderResult(Struct, frozen=True):
    """One contender: seconds of a step in every round, and what a step needs.

    `cpu` is user and system time of all ranks; `wall` is that of the slowest rank. `peak` are the
    bytes of new memory on the fullest rank, `sent` the bytes that all ranks send. A plan of the
    library has the facts of its program.
    """

    name: str
    repetitions: int
    cpu: list[float]
    wall: list[float]
    peak: int
    sent: float
    collectives: int
    facts: ListFacts | None = None

    @property
    def is_plan(self) -> bool:
        """Whether it is a preset of the library."""
        return self.facts is not None


class ProblemResult(Struct, frozen=True):
    """All contenders of a problem, measured in one world, and why presets were left out."""

    problem: str
    kind: Kind
    contenders: list[ContenderResult]
    left_out: dict[str, str]

    def of(self, name: str) -> ContenderResult:
        """The contender of a name."""
        return next(result for result in self.contenders if result.name == name)

    @property
    def floor(self) -> ContenderResult:
        """The cheaper one of the products without communication."""
        floors = (result for result in self.contenders if result.name.startswith(FLOOR))
        return min(floors, key=lambda result: median(result.cpu))

    def cpu(self, name: str) -> Score:
        """CPU seconds above the floor, over DTensor's."""
        return score(self.of(name).cpu, self.of(REFERENCE).cpu, self.floor.cpu)

    def cpu_of_step(self, name: str) -> Score:
        """CPU seconds of the step, over DTensor's."""
        reference = self.of(REFERENCE).cpu
        return score(self.of(name).cpu, reference, [0.0] * len(reference))

    def wall(self, name: str) -> Score:
        """Wall seconds, over DTensor's."""
        reference = self.of(REFERENCE).wall
        return score(self.of(name).wall, reference, [0.0] * len(reference))

    def memory(self, name: str) -> Score:
        """Peak of new memory, over that of DTensor with sequence parallelism."""
        ratio = self.of(name).peak / self.of(MEMORY_REFERENCE).peak
        return Score(ratio, ratio, ratio)

    @property
    def plans(self) -> list[str]:
        """The presets that were measured."""
        return [result.name for result in self.contenders if result.is_plan]


class BenchmarkRun(Struct, frozen=True):
    """One run of the benchmark."""

    load: MachineLoad
    rounds: int
    batch: bool
    """Whether all ranks ran under SCHED_BATCH, as `primepar train` starts them."""
    problems: list[ProblemResult]
