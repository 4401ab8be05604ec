"""What a rank does now, noted by its main thread and read by its watchdog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.runtime.running import ListPlace

SETUP = "the setup"
Kind = Literal["setup", "step", "other"]
"""Of a part of a run: before the first step, a step, or anything else, such as a checkpoint."""


class PeerWait(NamedTuple):
    """What a rank waits in, as text, and the ranks that it waits for."""

    text: str
    peers: tuple[int, ...]


class Activity:
    """The part of a run that this rank is in, and in a step the instruction.

    Only in a step the rank is late if it waits: a proof, a checkpoint or a first compilation takes
    as long as it does, and so does a wait for a rank that is in one.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.meshes: Sequence[Mesh] = ()
        """Those whose programs run."""
        self._others = tuple(peer for peer in range(size) if peer != rank)
        self._part, self._together, self._changes = SETUP, "", 0
        self.kind: Kind = "setup"

    @contextmanager
    def part(self, name: str, kind: Kind = "other") -> Iterator[None]:
        """Note the part of the run that the body is: `step 3`, or `the checkpoint of step 3`."""
        before = self._part, self.kind
        self._change(name, kind)
        yield
        self._change(*before)

    @contextmanager
    def together(self, name: str) -> Iterator[None]:
        """Note that the body waits for all ranks, outside of a list of instructions."""
        self._together = name
        self._changes += 1
        yield
        self._together = ""

    def fail(self) -> None:
        """Note that the part has failed: this rank waits for nobody in it any more."""
        self._change(self._part, "other")

    def _change(self, name: str, kind: Kind) -> None:
        self._part, self.kind = name, kind
        self._changes += 1

    @property
    def token(self) -> tuple[object, ...]:
        """What changes whenever the rank goes on."""
        return (self._changes, *(mesh.running and mesh.running.token for mesh in self.meshes))

    @property
    def _place(self) -> ListPlace | None:
        running = (mesh.running for mesh in self.meshes if mesh.running is not None)
        return next(filter(None, (run.place() for run in running)), None)

    @property
    def text(self) -> str:
        """The part of the run, with the instruction if one runs."""
        where = self._together or self._place
        return self._part if not where else f"{self._part} at {where}"

    @property
    def waiting(self) -> PeerWait | None:
        """What this rank waits in; None if it does not wait, or is in no step."""
        if self.kind != "step":
            return None
        place = self._place
        peers = self._others if self._together else () if place is None else place.peers
        return PeerWait(self.text, peers) if peers else None
