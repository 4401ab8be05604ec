"""One communicator of one rank: it records calls and passes small values on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from primepar.preflight.capture.buffers import storage_id
from primepar.preflight.capture.carried_values import packed, small, unpacked, whole
from primepar.preflight.capture.rank_link import NeverComesError, RankLink
from primepar.preflight.capture.recorder import RankRecorder
from primepar.preflight.capture.works import RecordedWork
from primepar.schedule.program import Instruction

Tensors = Sequence[torch.Tensor]
Fill = Callable[[list[list[torch.Tensor]]], None]
"""Writes the outputs of a collective, of the values that its senders gave."""


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
        reads: Tensors = (),
        writes: Sequence[tuple[torch.Tensor, str]] = (),
        senders: Sequence[int] = (),
        fill: Fill | None = None,
    ) -> RecordedWork:
        """Record a call of a collective with a request, and return its work.

        `reads` are given to other ranks; `writes` are filled from what `senders` give.
        """
        head = f"{self.name}|{self._calls}"
        self._calls += 1
        outputs = [tensor for tensor, _ in writes]
        return self._post(make, reads, writes, f"{head}|{self.rank}",
                          [f"{head}|{rank}" for rank in senders],
                          outputs, fill)  # fmt: skip

    def message(
        self, make: Callable[[str], Instruction], tensor: torch.Tensor, block: str, peer: int,
        sends: bool,
    ) -> RecordedWork:  # fmt: skip
        """Record a posted message, and return its work."""
        ends = (self.rank, peer) if sends else (peer, self.rank)
        key = f"{self.name}|{ends[0]}>{ends[1]}|{self._messages[ends]}"
        self._messages[ends] += 1
        if sends:
            return self._post(make, [tensor], (), key, (), (), None)
        return self._post(make, (), [(tensor, block)], "", [key], [tensor], _fill_one(tensor))

    def _post(
        self, make: Callable[[str], Instruction], reads: Tensors,
        writes: Sequence[tuple[torch.Tensor, str]], own_key: str, keys: Sequence[str],
        outputs: Tensors, fill: Fill | None,
    ) -> RecordedWork:  # fmt: skip
        recorder = self.recorder
        if reads and own_key:
            self._give(own_key, reads)
        request = recorder.request()
        instruction = make(request)
        recorder.add(instruction)
        place = len(recorder.recording.instructions) - 1
        recorder.terms.call(place, reads, [tensor for tensor, _ in writes])
        arrive = self._arrival(keys, outputs, fill)
        work = RecordedWork(recorder, request, outputs, arrive if whole(outputs) else None)
        for tensor, block in writes:
            recorder.written(tensor, block)
            work.fly(tensor, block, receives=True)
        received = {storage_id(tensor) for tensor, _ in writes}
        for tensor in reads:
            if storage_id(tensor) not in received:
                work.fly(tensor, recorder.buffers.name(tensor), receives=False)
        if arrive is not None and not whole(outputs):
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
    from primepar.preflight.capture.carried_values import put

    return lambda values: put(tensor, values[0][0])
