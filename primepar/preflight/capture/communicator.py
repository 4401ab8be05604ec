"""One communicator of one rank: it records calls and passes small values on.

Torch sends shapes and objects as tensors of integers, and scripts read them at once. They are
passed from process to process, and so are small tensors of other types where the script reads them.
Others come without values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch.futures import Future
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import BufferFlight, extent, storage_id
from primepar.preflight.capture.recorder import (
    Mark,
    RankRecorder,
    ValueQuestion,
    posted_form,
)
from primepar.preflight.capture.runner import GivenValue, NeverComesError
from primepar.preflight.meaning.storages import NUMPY
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Group,
    Instruction,
    Recv,
    Send,
)

LARGEST_WHOLE = 1 << 26
"""Bytes of integers that are passed on."""
LARGEST_FRACTIONAL = 64
"""Elements of other tensors that are passed on, where the script reads them."""
Tensors = Sequence[torch.Tensor]


class NamedBuffer(NamedTuple):
    """A tensor and the block that instructions name."""

    tensor: torch.Tensor
    block: str


class NamedMessage(NamedTuple):
    """One side of one message."""

    instruction: Send | Recv
    buffer: NamedBuffer


class Fill(NamedTuple):
    """The tensors that values are written into, and what makes theirs of those of all senders."""

    targets: Tensors
    results: Callable[[list[list[torch.Tensor]]], list[torch.Tensor]]


class ExpectedValues(NamedTuple):
    """Values that come from other ranks under keys, and what writes them into the outputs."""

    keys: list[str]
    statement: str
    """What their senders have to state."""
    outputs: Tensors
    fill: Fill


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
        flight = BufferFlight(tensor, block, *extent(tensor), receives, self)
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
        instruction: Instruction,
        reads: Sequence[NamedBuffer],
        writes: Sequence[NamedBuffer],
        senders: Sequence[int],
        fill: Fill,
    ) -> RecordedWork:
        """Record a call of a collective that has a request, and return its work.

        `reads` are given to other ranks; `writes` are filled from what `senders` give.
        """
        head = f"{self.name}|{self._calls}"
        self._calls += 1
        statement = _statement(instruction)
        if reads:
            self._give(f"{head}|{self.rank}", statement, [buffer.tensor for buffer in reads])
        keys = [f"{head}|{rank}" for rank in senders]
        expected = [ExpectedValues(keys, statement, [buffer.tensor for buffer in writes], fill)]
        return self._post(instruction, reads, writes, expected)

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
                fill = Fill([buffer.tensor], lambda values: values[0])
                expected.append(ExpectedValues([key], statement, [buffer.tensor], fill))
        request = self.recorder.request()
        body = tuple(message for message, _ in posted)
        instruction = Group(body=body, request=request) if batch else posted_form(body[0], request)
        return self._post(instruction, reads, writes, expected)

    def _post(
        self,
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
        request = str(getattr(instruction, "request", ""))
        work = RecordedWork(recorder, request, written)
        # What all members receive alike has one lineage, whatever it was made of.
        alike = isinstance(instruction, AllReduce | AllGather | Broadcast)
        of_call = (self.name, self._calls, "" if alike else (self.rank, request))
        large = [] if writes or not shared or _is_small(shared) else reads
        for slot, (tensor, block) in enumerate([*writes, *large]):
            recorder.written(tensor, block, hash((*of_call, slot)))
        for tensor, block in writes:
            work.fly(tensor, block, receives=True)
        received = {storage_id(tensor) for tensor in written}
        for tensor, block in reads:
            if storage_id(tensor) not in received:
                work.fly(tensor, block, receives=False)
        for values in expected:
            arrive = self._arrival(values)
            if arrive is not None and _is_whole(values.outputs):
                work.arrivals.append(arrive)
            elif arrive is not None:
                for tensor in values.outputs:
                    recorder.pending[storage_id(tensor)] = arrive
        return work

    def _give(self, key: str, statement: str, tensors: Tensors) -> None:
        if not _is_small(tensors):
            return
        table, value = self.recorder.buffers, None
        is_here = not any(tensor.is_meta for tensor in tensors)
        if is_here and not table.mix(tensors).unknown:
            with torch.no_grad(), _disable_current_modes():
                flat = [tensor.detach().contiguous().reshape(-1) for tensor in tensors]
                value = msgspec.msgpack.encode(
                    [NUMPY(tensor.view(torch.uint8)).tobytes() for tensor in flat]
                )
        lineages = [table.lineage(tensor) for tensor in tensors]
        lineage = lineages[0] if len(lineages) == 1 else _mixed_lineage("several", lineages)
        question = self.recorder.questions.get(lineage)
        asked = None if question is None else (*question.mark, *question[1:])
        self.link.give(key, GivenValue(statement, value, lineage, asked))

    def _arrival(self, expected: ExpectedValues) -> Callable[[], None] | None:
        """What fetches the values of a call; None where they do not travel."""
        keys, statement, outputs, fill = expected
        if not keys or not outputs or not _is_small(outputs):
            return None

        def unpacked(value: bytes) -> list[torch.Tensor]:
            return [
                torch.frombuffer(bytearray(part), dtype=outputs[0].dtype)
                if part
                else outputs[0].new_empty(0)
                for part in msgspec.msgpack.decode(value, type=list[bytes])
            ]

        def arrive() -> None:
            try:
                given = self.link.ask(list(keys))
                if any(value.statement != statement for value in given):
                    raise NeverComesError
            except NeverComesError:
                self.recorder.recording.stopped = True
                raise
            table = self.recorder.buffers
            values = [answer.value for answer in given if answer.value is not None]
            if len(values) == len(given):
                with torch.no_grad(), _disable_current_modes():
                    results = fill.results([unpacked(value) for value in values])
                    for target, result in zip(fill.targets, results, strict=True):
                        # As much as fits: sizes that differ are refuted anyway.
                        flat = target.detach().new_zeros(target.numel())
                        size = min(flat.numel(), result.numel())
                        flat[:size] = result.reshape(-1)[:size]
                        target.detach().copy_(flat.view(target.shape))
                for tensor in outputs:
                    table.hold(tensor, table.contents(tensor)._replace(unknown=False))
            for answer in given:
                if answer.question is not None:
                    question = ValueQuestion(Mark(*answer.question[:2]), *answer.question[2:])
                    self.recorder.questions.setdefault(answer.lineage, question)
            lineages = [value.lineage for value in given]
            if len(given) == 1 or len(given) != len(outputs):
                kind = statement.partition(" ")[0]
                apart = kind in ("Scatter", "ReduceScatter", "AllToAll")
                parts = [*lineages, *([self.rank] if apart and any(lineages) else [])]
                mixed = parts[0] if len(parts) == 1 else _mixed_lineage(kind, parts)
                lineages = [mixed] * len(outputs)
            for tensor, lineage in zip(outputs, lineages, strict=True):
                if lineage or len(values) == len(given):
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


def _mixed_lineage(name: str, lineages: Sequence[int]) -> int:
    """How data are computed of several: 0 where all are constants."""
    return hash((name, *lineages)) if any(lineages) else 0


def _is_whole(tensors: Tensors) -> bool:
    """Whether tensors are of integers or truth values, that scripts read."""
    return bool(tensors) and not any(
        tensor.is_floating_point() or tensor.is_complex() for tensor in tensors
    )


def _is_small(tensors: Tensors) -> bool:
    """Whether tensors are passed on with their values."""
    if _is_whole(tensors):
        return sum(tensor.nbytes for tensor in tensors) <= LARGEST_WHOLE
    return sum(tensor.numel() for tensor in tensors) <= LARGEST_FRACTIONAL


def zero(tensor: torch.Tensor) -> None:
    """Fill what is received with numbers that do no harm; its own are not here."""
    with torch.no_grad(), _disable_current_modes():
        tensor.detach().zero_()
