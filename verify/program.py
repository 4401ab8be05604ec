"""Verification of one program: search for an order, the judge's decision, and a report in words.

The search is Kahn's algorithm over the wait graph: it finds a level for every node that is reached
(`primepar.schedule.waits`). It is not trusted: the judge (`primepar.certify`) checks the levels,
and decides every property. What is left here is what needs no trust: the time limit, which
properties have a meaning, and sentences and counterexamples made from the judge's violations.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from functools import cached_property
from time import perf_counter
from typing import Literal

from msgspec.structs import replace

from primepar.certify.judge import Judge
from primepar.certify.origins import origin
from primepar.errors import UnknownSizeError
from primepar.schedule.deadline import TIMEOUT, UnansweredError, deadline
from primepar.schedule.evidence import Violation, WrongEnd, WrongRead
from primepar.schedule.ledger import Memory, peak, resident_copies
from primepar.schedule.one_queue import moved_in_order, out_of_order
from primepar.schedule.program import Program
from primepar.schedule.transport import RENDEZVOUS, Transport
from primepar.schedule.waits import NEVER, WaitGraph, levels, shortest_cycle
from primepar.schedule.words import sentence, term_text
from primepar.verify.counterexample.program import of_violation
from primepar.verify.report import PropertyResult, Report

Solver = Literal["search", "z3"]
"""What finds an order: a linear search, or Z3."""
STOPS = "the program stops before its end: see deadlock-freedom"
NESTED = "reductions by sum, max and min are nested too deeply to be followed"
NOT_IN_ORDER = "not on NCCL, where the operations of a rank may run one after another: "
ONLY_BUFFERED = "only because sends are buffered; without that, "


def verify_program(
    program: Program,
    target: str = "program",
    buffered: bool = False,
    timeout: float = TIMEOUT,
    only: str | None = None,
    transport: Transport = RENDEZVOUS,
    solver: Solver = "search",
) -> Report:
    """Decide all properties of a program; only those that it asks are in the report.

    Coverage is asked if there is a grid. Placement is asked if there is `initial`, or an
    instruction that uses memory. Completion is asked if there is a grid, if `final` lists a block
    that the program reduces, or if a product reads one. Alignment is asked if there are two phases,
    or `final` lists anything but O and dI of the program's phases. Deadlock-freedom, which includes
    matching, and races are always asked; memory and traffic if the program has these fields.

    Messages are rendezvous unless `buffered`, which lets every send return at once. What is not
    decided after `timeout` seconds in all is unknown. After a deadlock or a race, placement,
    completion and alignment are not asked unless they fail before it. `only` asks a single
    property, whatever it needs. `transport` makes messages travel in another way than by rendezvous
    in any order; `buffered` is any number of slots. With `solver` "z3" it is Z3 that searches for
    an order, and that looks for a sub-operator that is not computed once (`primepar.verify.in_z3`).
    """
    if buffered:
        transport = replace(transport, slots=None)
    case = _Case(Judge(program, transport), solver)
    with _collector_paused(), deadline(timeout):
        names = [name for name in case.judge.asked() if only in (None, name)]
        results = [case.answer(name) for name in names]
    return Report.of(target, results)


def judgement(program: Program) -> dict[str, object]:
    """A sentence about a program for a page, and the places (rank, index) of what is wrong."""
    report = verify_program(program)
    refuted = next((result for result in report.properties if result.verdict == "refuted"), None)
    if refuted is None:
        names = ", ".join(one.name for one in report.properties if one.verdict == "proved")
        kind = "ends" if report.verdict == "proved" else "open"
        return {"kind": kind, "text": f"Proved: {names}.", "places": []}
    sentence = (refuted.counterexample or "").partition("\n")[0]
    details = refuted.details
    is_cycle = details is not None and details.kind == "waiting-cycle"
    events = details.events if details is not None else ()
    # Of a cycle every second event is where a rank hangs; the others are what it never comes to.
    hanging = events[::2] if is_cycle else [event for event in events if event.wrong]
    places = [(event.rank, event.index) for event in hanging if event.index is not None]
    return {"kind": "cycle" if is_cycle else "refuted", "places": places,
            "text": f"{refuted.name} is refuted: {sentence}"}  # fmt: skip


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


def first_violation(
    program: Program, name: str, buffered: bool = False, timeout: float = TIMEOUT
) -> Violation | None:
    """The first violation of a property as data; None if there is none, or no answer in time."""
    case = _Case(Judge(program, Transport(None if buffered else 0)), "search")
    with _collector_paused(), deadline(timeout):
        try:
            return next(iter(case.violations(name)), None) if name in case.judge.asked() else None
        except (UnansweredError, UnknownSizeError, RecursionError):
            return None


class _Case:
    """One program before the judge; what several properties need is found once."""

    def __init__(self, judge: Judge, solver: Solver) -> None:
        self.judge, self.solver = judge, solver
        self.strict = judge.transport.slots == 0

    def answer(self, name: str) -> PropertyResult:
        """The result of a property, with the first violation in words and drawn."""
        notes = {"deadlock-freedom": self._note_on_order, "memory": self._note_on_memory}
        start = perf_counter()
        try:
            wrong = self.violations(name)
            note = notes[name]() if name in notes and not wrong else None
            first = self._with_origin(wrong[0]) if wrong else None
        except (UnansweredError, UnknownSizeError) as error:
            return PropertyResult(name, "unknown", perf_counter() - start, reason=str(error))
        except RecursionError:
            return PropertyResult(name, "unknown", perf_counter() - start, reason=NESTED)
        seconds = perf_counter() - start
        if first is None:
            return PropertyResult(name, "proved", seconds, reason=note)
        return PropertyResult(
            name,
            "refuted",
            seconds,
            counterexample=sentence(first, self.judge.program),
            details=of_violation(self.judge.matches, first),
        )

    def violations(self, name: str) -> list[Violation]:
        """All that is wrong with a property, up to a question that has no answer.

        Raises `UnansweredError` or `UnknownSizeError` if such a question comes first.
        """
        questions: dict[str, Callable[[], Iterable[Violation]]] = {
            "coverage": self._coverage,
            "deadlock-freedom": self._deadlock,
            "races": lambda: self.judge.races,
            "memory": self.judge.memory,
            "traffic": self.judge.traffic,
        }
        wrong: list[Violation] = []
        try:
            wrong.extend(questions.get(name, lambda: self._data(name))())
        # Rank 0 exceeds its bound before rank 1 makes a block of unknown size: that is refuted
        # already.
        except UnknownSizeError:
            if not wrong:
                raise
        return wrong

    @cached_property
    def level(self) -> list[int]:
        """The levels that the search finds, checked by the judge."""
        level = self._search(self.judge.graph)
        # Whoever searched. A wrong level, of the search or of Z3, ends here and not in a proof.
        self.judge.check_levels(level)
        return level

    def _search(self, graph: WaitGraph) -> list[int]:
        if self.solver == "search":
            return levels(graph)
        from primepar.verify.in_z3 import levels_in_z3

        return levels_in_z3(graph)

    def _coverage(self) -> list[Violation]:
        # The judge counts in any case. Z3 then has to give the same answer, or there is an error.
        wrong = self.judge.coverage
        if self.solver == "z3":
            from primepar.verify.in_z3 import check_coverage_in_z3

            check_coverage_in_z3(self.judge.program, is_covered=not wrong)
        return wrong

    @cached_property
    def _wrong_data(self) -> list[Violation]:
        return self.judge.run(self.level).wrong

    def _data(self, name: str) -> list[Violation]:
        """What is wrong with the data. A program that stops has no end that could be right."""
        # Rank 0 reads wrong data and hangs later: refuted. It hangs before anything is wrong: open.
        wrong = [violation for violation in self._wrong_data if violation.of == name]
        if not wrong and not self.judge.finishes(self.level):
            raise UnansweredError(STOPS)
        return wrong

    def _deadlock(self) -> list[Violation]:
        if self.judge.matches.faults:
            return list(self.judge.matches.faults)
        if self.judge.finishes(self.level):
            return []
        if not self.judge.transport.is_plain:
            # A cycle of ranks is a clearer reason than operations that are held up.
            plain = WaitGraph(self.judge.matches, Transport(0 if self.strict else None))
            level = levels(plain)
            if NEVER in level:
                return [shortest_cycle(plain, level)]
        cycle = shortest_cycle(self.judge.graph, self.level)
        # Two ranks that both send first end with buffers. The sentence states it: such code often
        # works with small messages.
        if self.judge.transport == RENDEZVOUS:
            buffered = WaitGraph(self.judge.matches, Transport(None))
            cycle = changed(cycle, ends_buffered=NEVER not in levels(buffered))
        return [cycle]

    def _note_on_order(self) -> str | None:
        """What a proof of deadlock-freedom depends on: on buffers, or on an order unlike NCCL's."""
        program = self.judge.program
        if not self.strict:
            graph = WaitGraph(self.judge.matches)
            level = levels(graph)
            if NEVER in level:
                return ONLY_BUFFERED + sentence(shortest_cycle(graph, level), program)
        elif self.judge.transport.is_plain:
            cycle = out_of_order(program, self.judge.matches)
            # The executor moves posts to where the program ends in one queue. Only what hangs
            # after that is worth a note.
            if cycle is not None and moved_in_order(self.judge.matches) is None:
                return NOT_IN_ORDER + cycle
        return None

    def _note_on_memory(self) -> str:
        """The largest number of live elements on a rank, and copies of each tensor in `initial`."""
        program, meaning = self.judge.program, self.judge.meaning
        bound = program.memory
        assert bound is not None
        parts = []
        limits: tuple[tuple[Memory, int | None], ...] = (
            ("device", bound.device), ("host", bound.host),
        )  # fmt: skip
        for memory, limit in limits:
            if limit is not None:
                peaks = [peak(program, rank, meaning.size, memory) for rank in range(program.ranks)]
                parts.append(f"at most {max(peaks)} of {limit} live elements in {memory} memory")
        copies = [
            f"{tensor} {count}" for tensor, count in resident_copies(program, meaning).items()
        ]
        return "; ".join([*parts, *(["resident copies: " + ", ".join(copies)] if copies else [])])

    def _with_origin(self, violation: Violation) -> Violation:
        """A wrong sum with the instruction that made it wrong."""
        if violation.of != "completion" or not isinstance(violation, WrongRead | WrongEnd):
            return violation
        if violation.data is None:
            return violation
        # A second run of the whole program, so only for the violation that is printed.
        source = origin(self.judge, self.level, violation.block, violation.data, term_text)
        return changed(violation, origin=source)
