"""Decides all eight properties of one program, with Z3 or by the instructions of one rank."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter

from msgspec.structs import replace

from primepar.schedule.counterexample import Counterexample
from primepar.schedule.meaning import Meaning
from primepar.schedule.one_order import hangs_by, out_of_order
from primepar.schedule.own_communicators import own_communicators
from primepar.schedule.program import Alloc, Compute, Cut, Evict, Fetch, Free, Join, Program
from primepar.schedule.transport import RENDEZVOUS, Transport, on_pairs
from primepar.verify.counterexample.program import of_program
from primepar.verify.deadline import UnansweredError, deadline
from primepar.verify.program.coverage import cover
from primepar.verify.program.matching import Matching
from primepar.verify.program.memory import Memory
from primepar.verify.program.outcomes import complete, first_broken, misaligned
from primepar.verify.program.races import Race, races
from primepar.verify.program.solver import Solver
from primepar.verify.program.traffic import unequal
from primepar.verify.program.values import SymbolicRun
from primepar.verify.program.wait_order import Waits
from primepar.verify.report import PropertyResult, Report

_LOCAL = Compute | Alloc | Free | Fetch | Evict | Cut | Join
STOPS = "the program stops before its end: see deadlock-freedom"
NESTED = "reductions by sum, max and min are nested too deeply to be followed"
NOT_IN_ORDER = "not on NCCL, where posts of one communicator run in their order: "
ONLY_BUFFERED = "only because sends are buffered; without that, "


def verify_program(
    program: Program,
    target: str = "program",
    buffered: bool = False,
    timeout: float = 60.0,
    only: str | None = None,
    transport: Transport = RENDEZVOUS,
) -> Report:
    """Decide all properties of a program; only those that it asks are in the report.

    Coverage is asked if there is a grid. Placement is asked if there is `initial`, or an
    instruction that uses memory. Completion is asked if there is a grid, or `final` lists a block
    that the program reduces. Alignment is asked if there are two phases, or `final` lists anything
    but O and dI of the program's phases. Deadlock-freedom, which includes matching, and races are
    always asked; memory and traffic if the program has these fields.

    Messages are rendezvous unless `buffered`, which lets every send return at once. What is not
    decided after `timeout` seconds in all is unknown. After a deadlock or a race, placement,
    completion and alignment are not asked unless they fail before it. `only` asks a single
    property, whatever it needs. `transport` makes messages travel in another way than by rendezvous
    in any order; `buffered` is any number of slots.
    """
    if buffered:
        transport = replace(transport, slots=None)
    if transport.order == "peer":
        program, transport = on_pairs(program), replace(transport, order="communicator")
    proof = _Proof(program, transport.slots != 0, Solver(), transport)
    questions: dict[str, Callable[[], str | None]] = {
        "coverage": lambda: cover(program, proof.solver),
        "placement": proof.placement,
        "completion": proof.completion,
        "alignment": proof.alignment,
        "deadlock-freedom": proof.deadlock,
        "races": proof.race,
        "memory": proof.memory.over,
        "traffic": lambda: unequal(proof.meaning, proof.flow),
    }
    names = [name for name in asked(proof.meaning) if only in (None, name)]
    with _collector_paused(), deadline(timeout):
        results = [_answer(name, questions[name], proof) for name in names]
    return Report.of(target, results)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which costs a fourth of a proof and finds no cycles in it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def asked(meaning: Meaning) -> Iterator[str]:
    """Yield the names of the properties that a program asks (see `verify_program`)."""
    program = meaning.program
    nodes = [node for instructions in program.programs for node in instructions]
    ends = (*(program.final or ()), *(program.host_final or ()))
    final = {block for blocks in ends for block in blocks}
    sums = {block for block in final if meaning.maker(block) is not None}
    if program.grid:
        yield "coverage"
    if program.initial is not None or any(isinstance(node, _LOCAL) for node in nodes):
        yield "placement"
    if program.grid or sums:
        yield "completion"
    phases = {node.phase for node in nodes if isinstance(node, Compute)} - {None}
    if final - sums or any(block.startswith("dW") for block in sums) or len(phases) > 1:
        yield "alignment"
    yield "deadlock-freedom"
    yield "races"
    if program.memory is not None:
        yield "memory"
    if program.traffic is not None:
        yield "traffic"


def _answer(name: str, question: Callable[[], str | None], proof: _Proof) -> PropertyResult:
    start = perf_counter()
    note = None
    try:
        wrong = question()
        if wrong is None and name == "deadlock-freedom":
            note = proof.buffers_needed() if proof.buffered else proof.held_up()
        if wrong is None and name == "memory":
            note = proof.memory.note()
    except UnansweredError as error:
        return PropertyResult(name, "unknown", perf_counter() - start, reason=str(error))
    except RecursionError:
        return PropertyResult(name, "unknown", perf_counter() - start, reason=NESTED)
    seconds = perf_counter() - start
    if wrong is not None:
        details = _details(proof, name, wrong)
        return PropertyResult(name, "refuted", seconds, counterexample=wrong, details=details)
    return PropertyResult(name, "proved", seconds, reason=note)


def _details(proof: _Proof, name: str, wrong: str) -> Counterexample | None:
    """A counterexample as data, unless even its messages cannot be matched in time."""
    try:
        return of_program(proof.program, proof.flow, name, wrong)
    except UnansweredError:
        return None


@dataclass
class _Proof:
    program: Program
    buffered: bool
    solver: Solver
    transport: Transport

    @cached_property
    def meaning(self) -> Meaning:
        return Meaning(self.program)

    @cached_property
    def flow(self) -> Matching:
        return Matching.of(self.program)

    @cached_property
    def waits(self) -> Waits:
        return Waits(self.flow, self.buffered)

    @cached_property
    def hanging(self) -> str | None:
        """Why it hangs by its transport alone; not asked where it hangs anyway."""
        if self.transport.is_plain or self.flow.faults or not self.waits.finishes:
            return None
        return hangs_by(self.program, self.transport)

    @cached_property
    def races(self) -> list[Race]:
        return races(self.flow, self.meaning)

    @cached_property
    def run(self) -> SymbolicRun:
        racing = {(race.rank, race.index, race.block) for race in self.races}
        run = SymbolicRun(self.meaning, self.flow, racing)
        run.follow(self.waits.order())
        return run

    @cached_property
    def memory(self) -> Memory:
        return Memory(self.meaning)

    def placement(self) -> str | None:
        return self._to_the_end(first_broken(self.run, "placement"))

    def completion(self) -> str | None:
        wrong = first_broken(self.run, "completion")
        return self._to_the_end(wrong) or complete(self.program, self.run)

    def alignment(self) -> str | None:
        wrong = self._to_the_end(first_broken(self.run, "alignment"))
        return wrong or misaligned(self.program, self.run)

    def _to_the_end(self, wrong: str | None) -> str | None:
        if wrong is None and (self.hanging or not self.waits.finishes):
            raise UnansweredError(STOPS)
        return wrong

    def deadlock(self) -> str | None:
        if self.flow.faults:
            return self.flow.faults[0].sentence
        if not self.waits.finishes:
            return self.waits.circle(self.solver) + self._saved_by_buffers()
        if self.hanging is not None:
            return self.hanging
        self.waits.check_order(self.solver)
        return None

    def buffers_needed(self) -> str | None:
        strict = Waits(self.flow, buffered=False)
        return None if strict.finishes else ONLY_BUFFERED + strict.circle(self.solver)

    def held_up(self) -> str | None:
        if not self.transport.is_plain:
            return None
        wrong = out_of_order(own_communicators(self.program))
        return wrong and NOT_IN_ORDER + wrong

    def _saved_by_buffers(self) -> str:
        if self.buffered or not Waits(self.flow, buffered=True).finishes:
            return ""
        return "\n  with buffered sends it would run to its end"

    def race(self) -> str | None:
        return self.races[0].sentence if self.races else None
