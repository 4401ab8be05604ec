"""Writes down what one rank communicates, as instructions with their places in the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from msgspec.structs import asdict, replace

from primepar.preflight.capture.buffers import (
    BufferFlight,
    BufferTable,
    PostedWork,
    StorageContents,
    extent,
    storage_id,
)
from primepar.preflight.capture.rank_link import RankLink
from primepar.preflight.capture.source_lines import source_line
from primepar.preflight.meaning.recorder import TermRecorder
from primepar.preflight.recording import Gap, RankRecording
from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Recv, Send, Wait


@dataclass
class QuietReading:
    """What was read while nobody went on by it."""

    unknown: bool = False


class RankRecorder:
    """The recording of one rank, and the buffers that its instructions name."""

    def __init__(self, link: RankLink) -> None:
        self.link = link
        self.recording = RankRecording()
        self.buffers = BufferTable()
        self.terms = TermRecorder(source_line)
        self.pending: dict[int, Callable[[], None]] = {}
        """Storage -> what fetches its value from the ranks that it came from."""
        self.open_works: list[PostedWork] = []
        """Posted and not yet waited for."""
        self.inherited: StorageContents | None = None
        """Of a functional collective: what its inputs depend on; it works on copies of them."""
        self._quiet: QuietReading | None = None
        self._requests = 0
        self._scratch = 0

    def add(self, instruction: Instruction) -> None:
        """Record an instruction at the line that the script is in."""
        instructions = self.recording.instructions
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

    def steered(self, how: str = "decides by") -> None:
        """Record that the script goes on by a value of other ranks, which is not here."""
        if self._quiet is not None:
            self._quiet.unknown = True
            return
        self.gap(f"{how} a value that other ranks computed, and may do otherwise")

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's values depend on other ranks, after fetching what was sent."""
        self.settle([tensor], steers=True)
        return self.buffers.contents(tensor).unknown

    @contextmanager
    def reading_quietly(self) -> Iterator[QuietReading]:
        """While values are read that nobody goes on by; yields whether they are unknown."""
        before, self._quiet = self._quiet, QuietReading()
        try:
            yield self._quiet
        finally:
            self._quiet = before

    def reading(self, tensor: torch.Tensor, parts: bool = False) -> str:
        """Name a buffer that is about to be sent; record first how it was computed.

        If it is sent in parts, its first part stands for all of them.
        """
        block = self.buffers.names(tensor, 1)[0] if parts else self.naming(tensor)
        computed = self.buffers.computed(tensor, block, self.inherited)
        if computed is not None:
            self.add(computed)
        return block

    def written(self, tensor: torch.Tensor, block: str, unknown: bool = True) -> None:
        """Note that a buffer now holds a block that came from other ranks."""
        self.buffers.hold(tensor, StorageContents(frozenset({block}), unknown))
        self.pending.pop(storage_id(tensor), None)

    def naming(self, tensor: torch.Tensor) -> str:
        """Name a buffer that is about to be written."""
        return self.buffers.name(tensor)

    @contextmanager
    def functional(self, inherited: StorageContents) -> Iterator[None]:
        """While a functional collective runs, which copies its inputs where nobody sees it."""
        self.inherited = inherited
        try:
            yield
        finally:
            self.inherited = None

    def fly(self, tensor: torch.Tensor, flight: BufferFlight) -> None:
        """Note that a buffer is in flight from now on."""
        self.buffers.flights.setdefault(storage_id(tensor), []).append(flight)

    def land(self, tensor: torch.Tensor, flight: BufferFlight) -> None:
        """Note that a buffer is no longer in flight."""
        flights = self.buffers.flights.get(storage_id(tensor), [])
        if flight in flights:
            flights.remove(flight)
        if not flights:
            self.buffers.flights.pop(storage_id(tensor), None)

    def access(self, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Record an operation on a buffer in flight: a wait where it waits, else a computation."""
        for tensor in inputs:
            for flight in tuple(self.buffers.flights.get(storage_id(tensor), ())):
                first, end = extent(tensor)
                if flight.end <= first or end <= flight.first:
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


def posted_form(message: Send | Recv, request: str) -> Instruction:
    """The posted form of a message."""
    kind = ISend if isinstance(message, Send) else IRecv
    return kind(**asdict(message), request=request)
