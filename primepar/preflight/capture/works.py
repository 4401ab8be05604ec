"""What a communication of torch returns: a work that is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.futures import Future

from primepar.preflight.capture.buffers import BufferFlight, extent
from primepar.preflight.capture.recorder import RankRecorder


class RecordedWork(dist.Work):
    """A posted communication; its first wait is recorded, and fetches values that are needed."""

    def __init__(
        self,
        recorder: RankRecorder,
        request: str,
        outputs: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self._recorder, self._request = recorder, request
        self.arrivals: list[Callable[[], None]] = []
        """What fetches values that the script may read after the wait."""
        self._outputs = list(outputs)
        self._flights: list[tuple[torch.Tensor, BufferFlight]] = []
        self._done = False
        self.earlier: Sequence[RecordedWork] = ()
        """Works of the same call, which are waited for together."""
        self.waits_itself = recorder.inherited is not None
        recorder.open_works.append(self)

    def fly(self, tensor: torch.Tensor, block: str, receives: bool) -> None:
        """Note a buffer that is in flight until the wait."""
        flight = BufferFlight(block, *extent(tensor), receives, self)
        self._recorder.fly(tensor, flight)
        self._flights.append((tensor, flight))

    def finish(self) -> None:
        """Record the wait, once, and fill in values that were sent for real."""
        if self._done:
            return
        self._done = True
        for work in self.earlier:
            work.finish()
        self._recorder.open_works.remove(self)
        for tensor, flight in self._flights:
            self._recorder.land(tensor, flight)
        self._flights.clear()
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
