"""One communicator of one rank: it records calls and passes small values on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import storage_id
from primepar.preflight.capture.carried_values import packed, put, small, unpacked, whole
from primepar.preflight.capture.rank_link import GivenValue, NeverComesError
from primepar.preflight.capture.recorder import RankRecorder, posted_form
from primepar.preflight.capture.works import RecordedWork
from primepar.schedule.program import (
    AllReduce,
    AllToAll,
    Broadcast,
    Group,
    Instruction,
    Recv,
    Send,
)

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
    statement: str
    """What their senders have to state."""
    outputs: Tensors
    fill: Fill | None


class Communicator:
    """The members of a group in their order, and what this rank has called on it so far."""

    def __init__(
        self, recorder: RankRecorder, name: str, members: tuple[int, ...], rank: int
    ) -> None:
        self.recorder, self.link, self.name = recorder, recorder.link, name
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
        request = self.recorder.request()
        instruction = make(request)
        statement = _statement(instruction)
        if reads:
            self._give(f"{head}|{self.rank}", statement, [buffer.tensor for buffer in reads])
        keys = [f"{head}|{rank}" for rank in senders]
        outputs = [buffer.tensor for buffer in writes]
        expected = [ExpectedValues(keys, statement, outputs, fill)]
        return self._post(request, instruction, reads, writes, expected)

    def messages(self, posted: Sequence[NamedMessage], batch: bool = False) -> RecordedWork:
        """Record one posted message, or a batch that starts together, and return its work."""
        reads, writes, expected = [], [], []
        for message, buffer in posted:
            sends, peer = isinstance(message, Send), message.peer
            ends = (self.rank, peer) if sends else (peer, self.rank)
            key = f"{self.name}|{ends[0]}>{ends[1]}|{self._messages[ends]}"
            self._messages[ends] += 1
            statement = _statement(message)
            if sends:
                self._give(key, statement, [buffer.tensor])
                reads.append(buffer)
            else:
                writes.append(buffer)
                fill = _fill_one(buffer.tensor)
                expected.append(ExpectedValues([key], statement, [buffer.tensor], fill))
        request = self.recorder.request()
        body = tuple(message for message, _ in posted)
        instruction: Instruction = (
            Group(body=body, request=request) if batch else posted_form(body[0], request)
        )
        return self._post(request, instruction, reads, writes, expected)

    def _post(
        self,
        request: str,
        instruction: Instruction,
        reads: Sequence[NamedBuffer],
        writes: Sequence[NamedBuffer],
        expected: Sequence[ExpectedValues],
    ) -> RecordedWork:
        recorder = self.recorder
        recorder.add(instruction)
        place = len(recorder.recording.instructions) - 1
        written = [buffer.tensor for buffer in writes]
        read = [buffer.tensor for buffer in reads]
        # After a broadcast the root's tensor is what everybody has: it gets the same term.
        shared = read if isinstance(instruction, Broadcast) else []
        recorder.terms.call(place, read, written or shared)
        work = RecordedWork(recorder, request, written)
        for tensor in shared if not small(shared) else []:
            recorder.written(tensor, reads[0].block)
        for tensor, block in writes:
            recorder.written(tensor, block)
            work.fly(tensor, block, receives=True)
        received = {storage_id(tensor) for tensor in written}
        for tensor, block in reads:
            if storage_id(tensor) not in received:
                work.fly(tensor, block, receives=False)
        for values in expected:
            arrive = self._arrival(values)
            if arrive is not None and whole(values.outputs):
                work.arrivals.append(arrive)
            elif arrive is not None:
                for tensor in values.outputs:
                    recorder.pending[storage_id(tensor)] = arrive
        return work

    def _give(self, key: str, statement: str, tensors: Tensors) -> None:
        if small(tensors):
            table = self.recorder.buffers
            value = None if table.mix(tensors).unknown else packed(tensors)
            lineages = [table.lineage(tensor) for tensor in tensors]
            lineage = lineages[0] if len(lineages) == 1 else mixed_lineage("several", lineages)
            self.link.give(key, GivenValue(statement, value, lineage))

    def _arrival(self, expected: ExpectedValues) -> Callable[[], None] | None:
        """What fetches the values of a call; None where they do not travel."""
        keys, statement, outputs, fill = expected
        if fill is None or not keys or not outputs or not small(outputs):
            return None

        def arrive() -> None:
            try:
                given = self.link.ask(list(keys))
                if any(value.statement != statement for value in given):
                    raise NeverComesError
            except NeverComesError:
                self.recorder.recording.stopped = True
                raise
            values = [answer.value for answer in given]
            if any(value is None for value in values):
                return
            with torch.no_grad(), _disable_current_modes():
                fill([unpacked(value, outputs[0]) for value in values if value is not None])
            table = self.recorder.buffers
            lineages = [value.lineage for value in given]
            if len(given) == 1 or len(given) != len(outputs):
                kind = statement.partition(" ")[0]
                apart = kind in ("Scatter", "ReduceScatter", "AllToAll")
                parts = [*lineages, *([self.rank] if apart and any(lineages) else [])]
                whole_lineage = parts[0] if len(parts) == 1 else mixed_lineage(kind, parts)
                lineages = [whole_lineage] * len(outputs)
            for tensor, lineage in zip(outputs, lineages, strict=True):
                table.hold(tensor, table.contents(tensor)._replace(unknown=False))
                table.derive(tensor, lineage)

        return arrive


def _statement(post: Instruction) -> str:
    """What both sides of a message, or all members of a call, have to state alike.

    For example `AllReduce sum 1 4 int64`: the same as `schedule.matching` compares.
    """
    if isinstance(post, Send | Recv):
        return f"message {post.tag} {post.count} {post.dtype}"
    names = ["root", "reduction", "scale"]
    if not isinstance(post, AllToAll):  # its parts may have other sizes on each rank
        names += ["count", "dtype"]
    claims = [str(getattr(post, name, "")) for name in names]
    more = str(len(post.reduced)) if isinstance(post, AllReduce) else ""
    return " ".join([type(post).__name__, *claims, more])


def mixed_lineage(name: str, lineages: Sequence[int]) -> int:
    """How data are computed of several: 0 where all are constants."""
    return hash((name, *lineages)) if any(lineages) else 0


def _fill_one(tensor: torch.Tensor) -> Fill:
    return lambda values: put(tensor, values[0][0])
