"""Records a run: one event, with its times, for each product and each message of this rank."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from primepar.distributed.runtime.collectives import elements_sent
from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import CompiledStep, Frame
from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.events import Event
from primepar.schedule.program import (
    Alloc,
    Collective,
    Compute,
    Cut,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Message,
    Recv,
    Send,
    Wait,
)


class Recorder:
    """Runs steps and appends their events; that of a posted message lasts from post to wait."""

    def __init__(self, mesh: Mesh, shapes: Shapes, events: list[Event]) -> None:
        self.mesh, self.shapes, self.events = mesh, shapes, events
        self._posted: dict[str, tuple[Message | Collective, float, int]] = {}

    def run(self, steps: Iterable[CompiledStep], frame: Frame) -> None:
        """Run all steps in order."""
        for step in steps:
            start = self._now()
            step.run(frame)
            posted = [node for node in step.instructions if _request(node) is not None]
            for node in posted:
                self._post(node, start)
            if step.instructions and not posted:
                self.mesh.synchronize()
            for node in step.instructions:
                if node not in posted:
                    self._done(node, start)

    def _post(self, node: Instruction, start: float) -> None:
        """Store a posted instruction until its wait, with the elements that it sends."""
        if isinstance(node, Collective):
            size = round(elements_sent(node, self.mesh.rank, self.shapes.elements))
            self._posted[str(node.request)] = (node, start, size)
        elif isinstance(node, ISend | IRecv):
            self._posted[node.request] = (node, start, self.shapes.elements(node.block))

    def _now(self) -> float:
        return time.perf_counter() - self.mesh.origin

    def _done(self, node: Instruction, start: float) -> None:
        if isinstance(node, Wait):
            posted, start, size = self._posted.pop(node.request)
            if isinstance(posted, Collective):
                self._append(posted, start, elements=size)
            else:
                self._message(posted, start, size)
        elif isinstance(node, Group):
            for message in node.body:
                self._message(message, start, self.shapes.elements(message.block))
        elif isinstance(node, Send | Recv):
            self._message(node, start, self.shapes.elements(node.block))
        elif isinstance(node, Compute):
            dims = {str(dim): index for dim, index in (node.sub_operator or {}).items()}
            self._append(
                node, start, block=node.accumulates, phase=node.phase or "", sub_operator=dims
            )
        elif isinstance(node, Collective):
            sent = elements_sent(node, self.mesh.rank, self.shapes.elements)
            self._append(node, start, elements=round(sent))
        elif not isinstance(node, Alloc | Free | Cut | Join):
            self._append(node, start)

    def _message(self, node: Message, start: float, size: int) -> None:
        sent = size if isinstance(node, Send | ISend) else 0
        self._append(node, start, peer=node.peer, elements=sent)

    def _append(self, node: Instruction, start: float, **fields: Any) -> None:
        self.events.append(
            Event(
                rank=self.mesh.first + self.mesh.rank,
                track="compute" if isinstance(node, Compute) else "communication",
                op=str(node.__struct_config__.tag),
                start=start,
                end=self._now(),
                **{"block": str(getattr(node, "block", "")), **fields},
            )
        )


def _request(node: Instruction) -> str | None:
    """Return the request of a posted instruction; None for a wait and for blocking instructions."""
    return None if isinstance(node, Wait) else getattr(node, "request", None)
