"""Actions on memory: allocate and release buffers, copy blocks, give blocks to the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from primepar.distributed.runtime.memory import Buffer, Slot
from primepar.distributed.runtime.messages import Action, Frame


@dataclass(eq=False)
class Allocate:
    """Gives a buffer new memory; nothing is to be done for one in the arena."""

    buffer: Buffer
    device: torch.device

    def __call__(self, frame: Frame) -> None:
        """Allocate."""
        buffer = self.buffer
        buffer.bind(torch.empty(buffer.shape, dtype=buffer.dtype, device=self.device))


@dataclass(eq=False)
class Release:
    """Gives up the memory of a buffer; nothing is to be done for one in the arena."""

    buffer: Buffer

    def __call__(self, frame: Frame) -> None:
        """Release."""
        self.buffer.clear()


def needed(action: Action) -> bool:
    """Return whether an action does anything at run time."""
    return not (isinstance(action, Allocate | Release) and action.buffer.owner == "arena")


def copying(into: Slot, source: Slot) -> Action:
    """Return the copy of a block."""
    return lambda frame: into[0].copy_(source[0])


def gluing(pieces: list[tuple[Slot, Slot]]) -> Action:
    """Return the copies of blocks into pieces of memory, (into, from)."""

    def glue(frame: Frame) -> None:
        for into, source in pieces:
            into[0].copy_(source[0])

    return glue


def made(observer: Any, name: str, slot: Slot) -> Action:
    """Return the note that a block has memory."""
    return lambda frame: observer.made(name, list.__getitem__(slot, 0))


def gone(observer: Any, name: str, slot: Slot) -> Action:
    """Return the note that a block ends."""
    return lambda frame: observer.gone(name, list.__getitem__(slot, 0))


def removing(name: str) -> Action:
    """Return the removal of a given block from the caller's dict."""
    return lambda frame: frame.blocks.pop(name, None)


def handing_over(slots: dict[str, Slot]) -> Action:
    """Return the entry of all blocks that exist at the end in the caller's dict."""

    def hand_over(frame: Frame) -> None:
        for name, slot in slots.items():
            frame.blocks[name] = slot[0]

    return hand_over
