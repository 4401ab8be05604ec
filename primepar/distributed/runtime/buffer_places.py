"""Gives every block of one rank a buffer, by a walk over its list before it runs.

Given blocks are never written. Blocks that exist at the end have memory of their own, which the
caller owns. Large buffers have memory of their own too, while they are needed, as
`buffer_owners` chooses. All other buffers are in the arena, where they and their views are made
once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import Protocol

import torch

from primepar.distributed.runtime.joins import LaterJoin, LaterJoins
from primepar.distributed.runtime.memory import Buffer, Slot, View, all_of
from primepar.distributed.runtime.memory_actions import (
    Allocate,
    Release,
    copying,
    gone,
    handing_over,
    made,
    removing,
)
from primepar.distributed.runtime.messages import Action
from primepar.distributed.runtime.shapes import Shape, Shapes, Slices
from primepar.schedule.effects import effects, frees
from primepar.schedule.program import Evict, Free, Instruction

SCRATCH = "#"
"""Name of what has the memory that one instruction, or one message, takes for itself."""


class Observer(Protocol):
    """Notes which blocks are made and freed; with it every buffer is allocated in every run."""

    def slot(self, name: str) -> Slot:
        """Return a slot for a block."""

    def made(self, name: str, block: torch.Tensor) -> None:
        """Note a block that has memory now."""

    def gone(self, name: str, block: torch.Tensor) -> None:
        """Note a block that ends."""


class BufferPlaces:
    """Tracks the buffer of every block; its methods return the actions to do at run time."""

    def __init__(
        self,
        shapes: Shapes,
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
        instructions: tuple[Instruction, ...],
        rank: int,
        joins: LaterJoins,
        *,
        observer: Observer | None = None,
        shares: bool = True,
        donated: Collection[str] = (),
    ) -> None:
        self.shapes, self.dtypes, self.device, self.place = shapes, dtypes, device, 0
        self.here: dict[str, Buffer] = {}
        self.slots: dict[str, Slot] = {}
        """Block -> the slot of its tensor."""
        self.given: dict[str, Buffer] = {}
        self.buffers: list[Buffer] = []
        """All buffers except given ones."""
        self._joins, self._shares, self._observer = joins, shares, observer
        self._opened: dict[int, Buffer] = {}
        self._in_flight: dict[str, list[Buffer]] = {}
        self._donated = donated
        # A copy to the host may run next to what follows: then the memory is not the arena's.
        self._evicted = {node.block for node in instructions if isinstance(node, Evict)}
        self._last_end = {
            name: position for position, node in enumerate(instructions) for name in frees(node)
        }
        self._last_use = {
            name: position
            for position, node in enumerate(instructions)
            if not isinstance(node, Free)
            for name in effects(node, rank).reads
        }

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a block."""
        return self.dtypes[self.shapes.wide(name)]

    def begin(self, names: Iterable[str]) -> None:
        """Register the blocks that exist before the first instruction."""
        for name in names:
            self.given[name] = Buffer(self.shapes.shape(name), self.dtype(name), "given")
            self._fill(name, self.given[name])

    def leaves(self, name: str, place: int = -1) -> bool:
        """Return whether the block exists after the last instruction: then the caller gets it."""
        return max(self.place, place) > self._last_end.get(name, -1)

    def _fill(self, name: str, buffer: Buffer) -> list[Action]:
        """Register a block that fills its buffer, which is allocated here."""
        actions: list[Action] = [] if buffer.owner == "given" else [Allocate(buffer, self.device)]
        return actions + self._view(buffer, {name: all_of(buffer.shape)})

    def _new(self, name: str, place: int = -1) -> Buffer:
        """Return a buffer for a block that is made here, or at a later `place` in the list."""
        buffer = self._buffer(self.shapes.shape(name), self.dtype(name))
        if self.leaves(name, place) or name in self._evicted:
            buffer.hand_over()
        return buffer

    def _buffer(self, shape: Shape, dtype: torch.dtype) -> Buffer:
        buffer = Buffer(shape, dtype, "arena", self.place, self.place)
        if self._observer is not None:
            buffer.hand_over()
        self.buffers.append(buffer)
        return buffer

    # Slots

    def slot(self, name: str, view: View | None = None) -> Slot:
        """Return the slot of a block as it is now, or of a view of it that is made once."""
        if view is None:
            return self.slots[name]
        buffer = self.here[name]
        place, turned = buffer.views[name], view
        if place == all_of(buffer.shape):
            return buffer.attach(self._slot(name), turned)
        return buffer.attach(self._slot(name), lambda whole: turned(whole[place]))

    def _slot(self, name: str) -> Slot:
        return [None] if self._observer is None else self._observer.slot(name)

    def scratch(self, shape: Shape, like: str) -> tuple[Buffer, list[Action]]:
        """Return memory for one instruction, or for a message until its wait."""
        buffer = self._buffer(shape, self.dtype(like))
        buffer.views[SCRATCH] = all_of(shape)
        return buffer, [Allocate(buffer, self.device)]

    # Messages in flight

    def posted(self, request: str, names: Iterable[str], more: list[Buffer]) -> None:
        """Keep the memory of blocks, and `more`, until the wait for a request."""
        self._in_flight[request] = [*(self.here[name] for name in names), *more]

    def waited(self, request: str) -> list[Action]:
        """Note that the wait for a request is here; returns the releases of scratch memory."""
        buffers = self._in_flight.pop(request, [])
        for buffer in buffers:
            buffer.last = max(buffer.last, self.place)
        return [Release(buffer) for buffer in buffers if SCRATCH in buffer.views]

    # Room

    def room(self, name: str, *, keep: bool = False) -> list[Action]:
        """Make a block writable; with `keep` its contents stay."""
        old, join = self.here.get(name), self._joins.get((self.place, name))
        if old is not None and old.writable(name) and (join is None or self._is_in(old, join)):
            return []
        return self.renew(name, keep=keep and old is not None)

    def renew(self, name: str, *, keep: bool = False) -> list[Action]:
        """Give a block another buffer; with `keep` its contents are copied."""
        old, join = self.slots.get(name), self._joins.get((self.place, name))
        left = self.drop(name)
        new = self._fill(name, self._new(name)) if join is None else self._enter(join, name)
        if not keep or old is None:
            return [*left, *new]
        # The old memory is given up after the copy.
        releases = [action for action in left if isinstance(action, Release)]
        left = [action for action in left if action not in releases]
        return [*left, *new, copying(self.slots[name], old), *releases]

    def is_planned(self, names: Iterable[str]) -> bool:
        """Return whether blocks that are made here are joined later, and so share a buffer."""
        return all((self.place, name) in self._joins for name in names)

    def _is_in(self, buffer: Buffer, join: LaterJoin) -> bool:
        return self._opened.get(join.place) is buffer

    def _enter(self, join: LaterJoin, name: str) -> list[Action]:
        """Give a block its place in the buffer of the block that it is joined into later."""
        actions: list[Action] = []
        if join.place not in self._opened:
            buffer = self._opened[join.place] = self._new(join.whole, join.place)
            actions = [Allocate(buffer, self.device)]
        buffer = self._opened[join.place]
        return [*actions, *self._view(buffer, {name: self.shapes.inside(name, join.whole)})]

    def _view(self, buffer: Buffer, views: dict[str, Slices]) -> list[Action]:
        """Make blocks views of a buffer."""
        buffer.views.update(views)
        self.here.update(dict.fromkeys(views, buffer))
        actions: list[Action] = []
        for name in views:
            self.slots[name] = self.slot(name, lambda block: block)
            if self._observer is not None:
                actions.append(made(self._observer, name, self.slots[name]))
        return actions

    # End

    def drop(self, name: str) -> list[Action]:
        """Remove a block; its buffer is released with its last block."""
        buffer = self.here.pop(name, None)
        if buffer is None:
            return []
        del buffer.views[name]
        actions: list[Action] = []
        if self._observer is not None:
            actions.append(gone(self._observer, name, self.slots[name]))
        if self.given.get(name) is buffer:
            actions.append(removing(name))
        if not buffer.views:
            buffer.last = max(buffer.last, self.place)
            actions.append(Release(buffer))
        return actions

    def end(self, place: int) -> list[Action]:
        """Hand the blocks that exist to the caller; their buffers are needed up to `place`.

        So are buffers in flight.
        """
        for buffers in (*self._in_flight.values(), self.here.values()):
            for buffer in buffers:
                buffer.last = place
        return [handing_over({name: self.slots[name] for name in self.here})]

    def pieces(self, names: list[str]) -> tuple[Buffer, list[Slot], list[Action]]:
        """Return flat scratch memory for some blocks, and the piece of each in its shape."""
        sizes = [prod(self.shapes.shape(name)) for name in names]
        buffer, actions = self.scratch((sum(sizes),), names[0])
        slots, first = [], 0
        for name, size in zip(names, sizes, strict=True):
            slots.append(buffer.attach([None], _piece(first, self.shapes.shape(name))))
            first += size
        return buffer, slots, actions


def _piece(first: int, shape: Shape) -> View:
    return lambda flat: flat[first : first + prod(shape)].view(shape)
