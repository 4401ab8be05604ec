"""Writes down what one rank communicates, as instructions with their places in the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from msgspec.structs import asdict, replace
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import BufferTable, PostedWork, storage_id
from primepar.preflight.capture.runner import RankLink
from primepar.preflight.capture.source_lines import (
    by_index,
    by_initializer,
    by_torch_or_logging,
    source_line,
)
from primepar.preflight.meaning.recorder import TermRecorder
from primepar.preflight.meaning.storages import Dependence, byte_range, span
from primepar.preflight.meaning.terms import Applied
from primepar.preflight.recording import Gap, MarkedDecision, RankRecording, Turns
from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Recv, Send, Wait

_USUAL = 0.5
"""In the place of a number that is not known, on all ranks alike."""
_LONGEST_WAIT = 200
"""Decisions of one line by unknown values until they go the other way: loops come to an end."""
MOST_DECISIONS = 10_000
"""Different decisions of a rank that are recorded."""


class Mark(NamedTuple):
    """What a number was computed from, on this rank.

    `lineage` names the operations and the data, also where other ranks have computed them; it is 0
    where there are none. Ranks with one lineage computed alike. `unknown`: its value is not here.
    """

    lineage: int = 0
    unknown: bool = False


class ValueQuestion(NamedTuple):
    """A comparison of a marked value with a constant: `value lt constant`."""

    mark: Mark
    comparison: str
    constant: float
    value: float


class RanOutOfMemoryError(torch.OutOfMemoryError):
    """In a fork: memory has run out at an operation of a script that catches that."""


class Guard:
    """The body of a `try` that catches it where memory runs out."""

    def __init__(self, number: int) -> None:
        self.number, self.operations, self.last = number, 0, ""
        """`last` is the line of its last operation so far."""


class RankRecorder:
    """The recording of one rank, and the buffers that its instructions name."""

    def __init__(self, link: RankLink, rank: int = 0, turns: Turns | None = None) -> None:
        self.link, self.rank = link, rank
        self.turns = turns or {}
        """The values that are others here, so that decisions go the other way."""
        self.questions: dict[int, ValueQuestion] = {}
        """Lineage of a truth value in a tensor -> the comparison that it is."""
        self._decided: set[tuple[int, str, float]] = set()
        self._asked: Counter[str] = Counter()
        """Line -> decisions by unknown values; a loop that waits for one comes to its end."""
        self.usually: set[int] = set()
        """Lineages of truth values that are true as a rule, such as `isfinite`."""
        self.recording = RankRecording()
        self.buffers = BufferTable()
        self.terms = TermRecorder(source_line)
        self.pending: dict[int, Callable[[], None]] = {}
        """Storage -> what fetches its value from the ranks that it came from."""
        self.open_works: list[PostedWork] = []
        """Posted and not yet waited for."""
        self.inherited: Dependence | None = None
        """Of a functional collective: what its inputs depend on; it works on copies of them."""
        self.publish: Callable[[], None] = lambda: None
        """Lets other ranks read the files that were written before a call."""
        self.shrinks = False
        """Whether large tensors are not computed."""
        self.guards: list[Guard] = []
        """The parts of the script, from outer to inner, that catch it where memory runs out."""
        self._guarded = 0
        self.quiet = 0
        """Readers whose values nobody goes on by."""
        self._requests = 0
        self._scratch = 0

    def add(self, instruction: Instruction) -> None:
        """Record an instruction at the line that the script is in."""
        instructions = self.recording.instructions
        self.publish()
        instructions.append(replace(instruction, source=source_line() or None))
        self.link.step(len(instructions) - 1, instructions[-1])

    def request(self) -> str:
        """A new name of a request."""
        self._requests += 1
        return f"r{self._requests - 1}"

    def gap(self, what: str) -> None:
        """Record something that no instruction expresses."""
        source, gaps = source_line(), self.recording.gaps
        if all((gap.source, gap.what) != (source, what) for gap in gaps):
            gaps.append(Gap(source, what, len(self.recording.instructions)))

    def mark(self, tensor: torch.Tensor) -> Mark | None:
        """What a tensor was computed from; None for constants. Fetches what was sent."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        self.settle([tensor], steers=True)
        lineage, unknown = self.buffers.lineage(tensor), self.depends_on(tensor).unknown
        return Mark(lineage, unknown) if lineage or unknown else None

    def mixed(self, name: str, marks: Sequence[Mark]) -> Mark:
        """The mark of what a function makes of numbers."""
        lineage = hash((name, *(mark.lineage for mark in marks)))
        return Mark(lineage, any(mark.unknown for mark in marks))

    def depends(self, tensor: torch.Tensor, mark: Mark) -> None:
        """Note that a tensor was also computed from marked numbers."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        before = self.mark(tensor)
        lineage = hash(("depends", before.lineage if before else 0, mark.lineage))
        self.buffers.derive(tensor, lineage)
        if mark.unknown and not tensor.is_meta:
            with _disable_current_modes():
                storages, inner = self.terms.storages, tensor.detach()
                made = Applied(f"number {mark.lineage}", (storages.read(inner),), span(inner))
                storages.write(inner, storages.add(made))
                blocks = storages.dependence([inner]).blocks | {"number"}
                storages.depend(inner, Dependence(blocks, unknown=True))

    def depends_on(self, *tensors: torch.Tensor) -> Dependence:
        """The received blocks that tensors depend on."""
        return self.terms.storages.dependence(tensors)

    def decide(
        self,
        mark: Mark,
        outcome: bool,
        negated: bool = False,
        question: ValueQuestion | None = None,
        cause: Literal["", "memory", "order"] = "",
    ) -> bool:
        """Record a decision of the script, and return how it goes on; in a fork the other way.

        A comparison with a constant is decided by its value, so that all comparisons of one value
        agree: where `x > 0` is turned round, `x < 0` is too. `negated` asks for the opposite.
        """
        if self.quiet:
            return outcome
        question = question or self.questions.get(mark.lineage)
        comparison, constant, value = "", 0.0, 0.0
        if question is not None:
            mark, comparison, constant, value = question
        source = source_line()
        if mark.unknown:
            # Ranks hold different numbers in the place of one sum: all of them answer alike.
            value = _USUAL
            outcome = (mark.lineage in self.usually) != negated
        turned = self.turns.get(mark.lineage, value)
        if turned is None:
            outcome = not outcome
        value = turned if comparison and turned is not None else value
        decision = MarkedDecision(source, *mark, comparison, constant, value, cause)
        if comparison:
            outcome = decision.holds(value)
        else:
            decision = replace(decision, value=float(outcome != negated))
        self._asked[source] += 1
        if mark.unknown:
            outcome = outcome != (self._asked[source] > _LONGEST_WAIT)
        times = self.turns.get(hash(source)) or 0
        outcome = outcome != (self._asked[source] <= times)
        if not by_initializer():  # numbers that are drawn once more steer nothing else
            self.recording.last = decision if mark.unknown else None
            self._note(decision)
        return outcome

    @contextmanager
    def guarded(self, handled: Callable[[], Any]) -> Iterator[None]:
        """While the body of a `try` runs that handles exceptions of some types."""
        guard = None
        with suppress(Exception):
            if issubclass(torch.OutOfMemoryError, handled()):
                self._guarded += 1
                guard = Guard(self._guarded)
                self.guards.append(guard)
        try:
            yield
        finally:
            if guard is not None:
                self.guards.remove(guard)
                if guard.operations:
                    self._decide_memory(guard)

    def allocate(self) -> None:
        """An operation within a guarded body: its memory may run out."""
        guard = self.guards[-1]
        guard.operations += 1
        guard.last = source_line()
        if self.turns.get(self._memory(guard), 0.0) is None:
            raise RanOutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if guard.operations == 1:
            self._decide_memory(guard)

    def _memory(self, guard: Guard) -> int:
        return hash(("memory", self.rank, guard.number, guard.operations))

    def _decide_memory(self, guard: Guard) -> None:
        self._note(MarkedDecision(guard.last, self._memory(guard), False, cause="memory"))

    def _note(self, decision: MarkedDecision) -> None:
        """Record a decision, once."""
        key = (decision.lineage, decision.comparison, decision.constant)
        if key not in self._decided and len(self._decided) < MOST_DECISIONS:
            self._decided.add(key)
            self.recording.decisions.append(decision)
        elif key not in self._decided:
            self.gap(f"decides more than {MOST_DECISIONS} times")

    def lose(self) -> None:
        """Note that a library, and not torch, makes a plain number of a marked one.

        An index of an array steers nothing: what is read by it is data.
        """
        if self.quiet or by_torch_or_logging() or by_index():
            return
        source = source_line()
        if source not in self.recording.lost:
            self.recording.lost.append(source)

    @contextmanager
    def reading_quietly(self) -> Iterator[None]:
        """While values are read that nobody goes on by."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def reading(self, tensor: torch.Tensor, parts: bool = False) -> str:
        """Name a buffer that is about to be sent; record first how it was computed.

        If it is sent in parts, its first part stands for all of them.
        """
        block = self.buffers.names(tensor, 1)[0] if parts else self.buffers.name(tensor)
        # What it was computed of may be on its way again by now, as a bucket of DDP is.
        flights = chain(*self.buffers.flights.values())
        changing = {flight.block for flight in flights if flight.receives}
        on = self.inherited or self.depends_on(tensor)
        if on.blocks - {block}:
            self.terms.storages.depend(tensor, Dependence(frozenset({block}), on.unknown))
            if reads := tuple(sorted(on.blocks - {block} - changing)):
                self.add(Compute(reads=reads, accumulates=block))
        return block

    def written(self, tensor: torch.Tensor, block: str, lineage: int) -> None:
        """Note that a buffer now holds a block that came from other ranks."""
        self.terms.storages.depend(tensor, Dependence(frozenset({block}), unknown=True))
        self.buffers.derive(tensor, lineage)
        self.pending.pop(storage_id(tensor), None)

    def access(self, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Record an operation on a buffer in flight: a wait where it waits, else a computation."""
        for tensor in inputs:
            for flight in tuple(self.buffers.flights.get(storage_id(tensor), ())):
                first, end = byte_range(tensor)
                if flight.place.end <= first or end <= flight.place.start:
                    continue
                if flight.work.waits_itself:
                    flight.work.finish()
                elif any(tensor is changed for changed in written):
                    self.add(Compute(reads=(flight.block,), accumulates=flight.block))
                elif flight.receives:
                    self._scratch += 1
                    self.add(Compute(reads=(flight.block,), accumulates=f"y{self._scratch - 1}"))

    def finish(self) -> None:
        """End the recording: what a library waits for by itself is waited for at the end."""
        self.publish()
        for work in tuple(self.open_works):
            if work.waits_itself and not (self.recording.stopped or self.recording.ended):
                work.finish()
        if not self.recording.ended:
            self.recording.terms = self.terms.result()

    def settle(self, inputs: Sequence[torch.Tensor], steers: bool) -> None:
        """Fetch the values of inputs that came without, where the script needs them."""
        for tensor in inputs:
            fetch = self.pending.get(storage_id(tensor))
            if fetch is not None and (steers or not tensor.is_floating_point()):
                del self.pending[storage_id(tensor)]
                fetch()

    def wait(self, request: str) -> None:
        """Record a wait; right after its post, the two are one blocking instruction."""
        instructions = self.recording.instructions
        last = instructions[-1] if instructions else None
        if getattr(last, "request", None) == request and not isinstance(last, Wait | None):
            instructions[-1] = blocking(last)
            self.link.step(len(instructions) - 1, instructions[-1])
            return
        self.add(Wait(request=request))


def blocking(instruction: Instruction) -> Instruction:
    """The blocking form of a posted instruction."""
    match instruction:
        case ISend() | IRecv():
            fields = asdict(instruction)
            del fields["request"]
            return Send(**fields) if isinstance(instruction, ISend) else Recv(**fields)
    return replace(instruction, request=None)
