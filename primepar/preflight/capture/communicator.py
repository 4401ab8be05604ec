"""One communicator of one rank: it records calls and passes small values on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import storage_id
from primepar.preflight.capture.carried_values import packed, put, small, unpacked, whole
from primepar.preflight.capture.rank_link import NeverComesError, RankLink
from primepar.preflight.capture.recorder import RankRecorder, posted_form
from primepar.preflight.capture.works import RecordedWork
from primepar.schedule.program import Broadcast, Group, Instruction, Recv, Send

Tensors = Sequence[torch.Tensor]
Fill = Callable[[list[list[torch.Tensor]]], None]
"""Writes the outputs of a collective, of the values that its senders gave."""


class NamedBuffer(NamedTuple):
    """A tensor and the block that instructions name."""

    tensor: torch.Tensor
    block: str


class NamedMessage(NamedTuple):
    """One side of one message."""

    instruction: Send | Recv
    buffer: NamedBuffer


class ExpectedValues(NamedTuple):
    """Values that come from other ranks under keys, and what writes them into the outputs."""

    keys: list[str]
    outputs: Tensors
    fill: Fill | None


class Communicator:
    """The members of a group in their order, and what this rank has called on it so far."""

    def __init__(
        self, recorder: RankRecorder, link: RankLink, name: str, members: tuple[int, ...], rank: int
    ) -> None:
        self.recorder, self.link, self.name = recorder, link, name
        self.members, self.rank = members, rank
        self._calls = 0
        self._messages: Counter[tuple[int, int]] = Counter()

    def call(
        self,
        make: Callable[[str], Instruction],
        reads: Sequence[NamedBuffer] = (),
        writes: Sequence[NamedBuffer] = (),
        senders: Sequence[int] = (),
        fill: Fill | None = None,
    ) -> RecordedWork:
        """Record a call of a collective with a request, and return its work.

        `reads` are given to other ranks; `writes` are filled from what `senders` give.
        """
        head = f"{self.name}|{self._calls}"
        self._calls += 1
        if reads:
            self._give(f"{head}|{self.rank}", [buffer.tensor for buffer in reads])
        keys = [f"{head}|{rank}" for rank in senders]
        outputs = [buffer.tensor for buffer in writes]
        return self._post(make, reads, writes, [ExpectedValues(keys, outputs, fill)])

    def messages(self, posted: Sequence[NamedMessage], batch: bool = False) -> RecordedWork:
        """Record one posted message, or a batch that starts together, and return its work."""
        reads, writes, expected = [], [], []
        for instruction, buffer in posted:
            sends, peer = isinstance(instruction, Send), instruction.peer
            ends = (self.rank, peer) if sends else (peer, self.rank)
            key = f"{self.name}|{ends[0]}>{ends[1]}|{self._messages[ends]}"
            self._messages[ends] += 1
            if sends:
                self._give(key, [buffer.tensor])
                reads.append(buffer)
            else:
                writes.append(buffer)
                expected.append(ExpectedValues([key], [buffer.tensor], _fill_one(buffer.tensor)))

        def make(request: str) -> Instruction:
            body = tuple(message.instruction for message in posted)
            return Group(body=body, request=request) if batch else posted_form(body[0], request)

        return self._post(make, reads, writes, expected)

    def _post(
        self,
        make: Callable[[str], Instruction],
        reads: Sequence[NamedBuffer],
        writes: Sequence[NamedBuffer],
        expected: Sequence[ExpectedValues],
    ) -> RecordedWork:
        recorder = self.recorder
        request = recorder.request()
        instruction = make(request)
        recorder.add(instruction)
        place = len(recorder.recording.instructions) - 1
        written = [buffer.tensor for buffer in writes]
        read = [buffer.tensor for buffer in reads]
        # After a broadcast the root's tensor is what everybody has: it gets the same term.
        shared = read if isinstance(instruction, Broadcast) else []
        recorder.terms.call(place, read, written or shared)
        work = RecordedWork(recorder, request, written)
        for tensor, block in writes:
            recorder.written(tensor, block)
            work.fly(tensor, block, receives=True)
        received = {storage_id(tensor) for tensor in written}
        for tensor, block in reads:
            if storage_id(tensor) not in received:
                work.fly(tensor, block, receives=False)
        for keys, outputs, fill in expected:
            arrive = self._arrival(keys, outputs, fill)
            if arrive is not None and whole(outputs):
                work.arrivals.append(arrive)
            elif arrive is not None:
                for tensor in outputs:
                    recorder.pending[storage_id(tensor)] = arrive
        return work

    def _give(self, key: str, tensors: Tensors) -> None:
        if small(tensors):
            unknown = self.recorder.buffers.mix(tensors).unknown
            self.link.give(key, None if unknown else packed(tensors))

    def _arrival(
        self, keys: Sequence[str], outputs: Tensors, fill: Fill | None
    ) -> Callable[[], None] | None:
        """What fetches the values of a call; None where they do not travel."""
        if fill is None or not keys or not outputs or not small(outputs):
            return None

        def arrive() -> None:
            try:
                values = self.link.ask(list(keys))
            except NeverComesError:
                self.recorder.recording.stopped = True
                raise
            if any(value is None for value in values):
                return
            with torch.no_grad(), _disable_current_modes():
                fill([unpacked(value, outputs[0]) for value in values if value is not None])
            for tensor in outputs:
                contents = self.recorder.buffers.contents(tensor)
                self.recorder.buffers.hold(tensor, contents._replace(unknown=False))

        return arrive


def _fill_one(tensor: torch.Tensor) -> Fill:
    return lambda values: put(tensor, values[0][0])
