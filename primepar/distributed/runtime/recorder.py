"""Records a run: one event, with its times, for each product and each message of this rank."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from primepar.distributed.runtime.mesh import Mesh
from primepar.distributed.runtime.running import CompiledStep, Frame
from primepar.distributed.runtime.shapes import Shapes
from primepar.schedule.events import Event
from primepar.schedule.ledger import sends
from primepar.schedule.program import (
    Alloc,
    Compute,
    Cut,
    Free,
    Group,
    Instruction,
    Join,
    Wait,
)


class Recorder:
    """Runs steps and appends their events; that of a posted message lasts from post to wait."""

    def __init__(self, mesh: Mesh, shapes: Shapes, events: list[Event]) -> None:
        self.mesh, self.shapes, self.events = mesh, shapes, events
        self._posted: dict[str, tuple[Instruction, float]] = {}

    def run(self, steps: Iterable[CompiledStep], frame: Frame) -> None:
        """Run all steps in order."""
        for step in steps:
            start = self._now()
            step.run(frame)
            done = [node for node in step.instructions if not _is_post(node)]
            if done:
                self.mesh.synchronize()
            for node in step.instructions:
                if node in done:
                    self._done(node, start)
                else:
                    self._posted[str(getattr(node, "request", None))] = node, start

    def _now(self) -> float:
        return time.perf_counter() - self.mesh.origin

    def _done(self, node: Instruction, start: float) -> None:
        if isinstance(node, Wait):
            node, start = self._posted.pop(node.request)
        for part in node.body if isinstance(node, Group) else (node,):
            if not isinstance(part, Alloc | Free | Cut | Join):
                self._append(part, start)

    def _append(self, node: Instruction, start: float) -> None:
        fields: dict[str, Any] = {"block": str(getattr(node, "block", ""))}
        if isinstance(node, Compute):
            dims = {str(dim): index for dim, index in (node.sub_operator or {}).items()}
            phase = node.phase or ""
            fields = {"block": node.accumulates, "phase": phase, "sub_operator": dims}
        sent = sum(
            times * self.shapes.elements(name) for name, times in sends(node, self.mesh.rank)
        )
        self.events.append(
            Event(
                rank=self.mesh.first + self.mesh.rank,
                track="compute" if isinstance(node, Compute) else "communication",
                op=str(node.__struct_config__.tag),
                start=start,
                end=self._now(),
                peer=getattr(node, "peer", None),
                elements=round(sent),
                **fields,
            )
        )


def _is_post(node: Instruction) -> bool:
    """Return whether a wait follows: not for blocking instructions, nor for a wait itself."""
    return not isinstance(node, Wait) and getattr(node, "request", None) is not None
