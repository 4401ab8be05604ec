"""What a call of one rank posts: a work that is waited for, and small values that travel.

Torch sends shapes and objects as tensors of integers, and scripts read them at once. They are
passed from process to process, and so are small tensors of other types where the script reads them.
Others come without values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch.futures import Future
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import BufferFlight, storage_id
from primepar.preflight.capture.recorder import Mark, RankRecorder, ValueQuestion
from primepar.preflight.capture.runner import GivenValue, NeverComesError
from primepar.preflight.meaning.storages import NUMPY, byte_range

LARGEST_WHOLE = 1 << 26
"""Bytes of integers that are passed on."""
LARGEST_FRACTIONAL = 64
"""Elements of other tensors that are passed on, where the script reads them."""
Tensors = Sequence[torch.Tensor]


class RecordedWork(dist.Work):
    """A posted communication; its first wait is recorded, and fetches values that are needed."""

    def __init__(self, recorder: RankRecorder, request: str, outputs: Tensors = ()) -> None:
        super().__init__()
        self._recorder, self._request = recorder, request
        self.arrivals: list[Callable[[], None]] = []
        """What fetches values that the script may read after the wait."""
        self._outputs = list(outputs)
        self._done = False
        self.earlier: Sequence[RecordedWork] = ()
        """Works of the same call, which are waited for together."""
        self.waits_itself = recorder.inherited is not None
        recorder.open_works.append(self)

    def fly(self, tensor: torch.Tensor, block: str, receives: bool) -> None:
        """Note a buffer that is in flight until the wait."""
        flight = BufferFlight(tensor, block, byte_range(tensor), receives, self)
        self._recorder.buffers.flights.setdefault(storage_id(tensor), []).append(flight)

    def finish(self) -> None:
        """Record the wait, once, and fill in values that were sent for real."""
        if self._done:
            return
        self._done = True
        for work in self.earlier:
            work.finish()
        self._recorder.open_works.remove(self)
        self._recorder.buffers.land(self)
        self._recorder.wait(self._request)
        for arrive in self.arrivals:
            arrive()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the communication; true as it never fails here."""
        self.finish()
        return True

    def synchronize(self) -> None:
        """Wait for the communication."""
        self.finish()

    def is_completed(self) -> bool:
        """True, and a wait: a script that asks goes on once the work is done."""
        self._recorder.gap("asks whether a communication is done, and may go on by the answer")
        self.finish()
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def _source_rank(self) -> int:
        """The sender of a receive from any rank: rank 0, with a gap."""
        return 0

    def result(self) -> list[torch.Tensor]:
        """The received tensors."""
        return self._outputs

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future that is done; its wait is where a received tensor is first accessed."""
        self.waits_itself = True
        future: Future[list[torch.Tensor]] = Future()
        future.set_result(self._outputs)
        return future


def give(recorder: RankRecorder, key: str, statement: str, tensors: Tensors) -> None:
    """Give small tensors to all ranks that ask for their key, as far as their values are here."""
    if not is_small(tensors):
        return
    table, value = recorder.buffers, None
    is_here = not any(tensor.is_meta for tensor in tensors)
    if is_here and not recorder.depends_on(*tensors).unknown:
        with torch.no_grad(), _disable_current_modes():
            flat = [tensor.detach().contiguous().reshape(-1) for tensor in tensors]
            value = msgspec.msgpack.encode(
                [NUMPY(tensor.view(torch.uint8)).tobytes() for tensor in flat]
            )
    lineages = [table.lineage(tensor) for tensor in tensors]
    lineage = lineages[0] if len(lineages) == 1 else _mixed_lineage("several", lineages)
    question = recorder.questions.get(lineage)
    asked = None if question is None else (*question.mark, *question[1:])
    recorder.link.give(key, GivenValue(statement, value, lineage, asked))


class Arrival(NamedTuple):
    """Values that come from other ranks under keys, and where they are written."""

    recorder: RankRecorder
    keys: list[str]
    senders: Sequence[int]
    statement: str
    """What their senders have to state."""
    outputs: Tensors
    """The tensors that change."""
    targets: Tensors
    """The parts of them that values are written into, in order."""
    results: Callable[[list[list[torch.Tensor]]], list[torch.Tensor]]
    """Makes their values of those of all senders."""

    def fetch(self) -> None:
        """Fetch and write the values. Raises `NeverComesError` where one never comes.

        Also where its sender states that it is another call's.
        """
        recorder, table = self.recorder, self.recorder.buffers
        try:
            given = recorder.link.ask(self.keys, self.senders)
            if any(value.statement != self.statement for value in given):
                raise NeverComesError
        except NeverComesError:
            recorder.recording.stopped = True
            raise
        values = [answer.value for answer in given if answer.value is not None]
        if len(values) == len(given):
            with torch.no_grad(), _disable_current_modes():
                results = self.results([self._unpacked(value) for value in values])
                for target, result in zip(self.targets, results, strict=True):
                    # As much as fits: sizes that differ are refuted anyway.
                    flat = target.detach().new_zeros(target.numel())
                    size = min(flat.numel(), result.numel())
                    flat[:size] = result.reshape(-1)[:size]
                    target.detach().copy_(flat.view(target.shape))
            for tensor in self.outputs:
                recorder.terms.storages.arrived(tensor)
        kind = self.statement.partition(" ")[0]
        if kind == "AllReduce" and len(values) < len(given):
            return  # those whose part is not known have not asked: its lineage is that of the call
        for answer in given:
            if answer.question is not None:
                question = ValueQuestion(Mark(*answer.question[:2]), *answer.question[2:])
                recorder.questions.setdefault(answer.lineage, question)
        lineages = [value.lineage for value in given]
        if len(given) == 1 or len(given) != len(self.outputs):
            apart = kind in ("Scatter", "ReduceScatter", "AllToAll")
            parts = [*lineages, *([recorder.rank] if apart and any(lineages) else [])]
            mixed = parts[0] if len(parts) == 1 else _mixed_lineage(kind, parts)
            lineages = [mixed] * len(self.outputs)
        for tensor, lineage in zip(self.outputs, lineages, strict=True):
            if lineage or len(values) == len(given):
                table.derive(tensor, lineage)

    def _unpacked(self, value: bytes) -> list[torch.Tensor]:
        parts, like = msgspec.msgpack.decode(value, type=list[bytes]), self.outputs[0]
        return [
            torch.frombuffer(bytearray(part), dtype=like.dtype) if part else like.new_empty(0)
            for part in parts
        ]


def _mixed_lineage(name: str, lineages: Sequence[int]) -> int:
    """How data are computed of several: 0 where all are constants."""
    return hash((name, *lineages)) if any(lineages) else 0


def is_whole(tensors: Tensors) -> bool:
    """Whether tensors are of integers or truth values, that scripts read."""
    return bool(tensors) and not any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in tensors
    )


def is_small(tensors: Tensors) -> bool:
    """Whether tensors are passed on with their values."""
    if is_whole(tensors):
        return sum(tensor.nbytes for tensor in tensors) <= LARGEST_WHOLE
    return sum(tensor.numel() for tensor in tensors) <= LARGEST_FRACTIONAL
