"""Gives every block of one rank its memory, by a walk over its list before it runs.

A block has a buffer of its own, which is allocated when the block is made and released when it
ends. Some exceptions save memory, or a copy:

- Parts that are joined later are made in one buffer, that of the whole (`joins`).
- Parts that are cut and end together stay in the buffer of the whole.
- A kernel that works element by element writes into the memory of an operand that nothing reads
  later. The new block of an update has the memory of the old one, which the caller donated.

Otherwise given blocks are never written, and a block that overlaps another one first gets a buffer
of its own.

Example: `recv a; recv b; join (a, b) -> c` allocates `c` before the first receive, `a` and `b` are
its halves, and the join does nothing. A later sum into `a` first copies `a`, while `c` is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

import torch

from primepar.distributed.runtime.joins import LaterJoins, are_rows
from primepar.distributed.runtime.memory import (
    Allocate,
    Buffer,
    Release,
    Slot,
    View,
    copying,
    piece,
    same,
)
from primepar.distributed.runtime.running import Action, Frame
from primepar.distributed.runtime.shapes import Shape, Shapes, Slices
from primepar.schedule.effects import effects, frees
from primepar.schedule.program import Free, Instruction, ReduceScatter


class Observer(Protocol):
    """Notes which blocks are made and freed; with it no kernel takes over memory."""

    def slot(self, name: str) -> Slot:
        """Return a slot for a block."""

    def made(self, name: str, block: torch.Tensor) -> None:
        """Note a block that has memory now."""

    def gone(self, name: str, block: torch.Tensor) -> None:
        """Note a block that ends."""


class MemoryPlaces:
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
        shares: bool = True,
        observer: Observer | None = None,
        donated: Collection[str] = (),
    ) -> None:
        self.shapes, self.dtypes, self.place = shapes, dtypes, 0
        self.here: dict[str, Buffer] = {}
        self.slots: dict[str, Slot] = {}
        """Block -> the slot of its tensor."""
        self.given: dict[str, Buffer] = {}
        self.buffers: list[Buffer] = []
        self._joins, self._observer, self._donated = joins, observer, donated
        self._shares = shares
        self._new = {
            dtype: torch.empty(0, dtype=dtype, device=device).new_empty for dtype in dtypes
        }
        self._opened: dict[int, Buffer] = {}
        """Position of a join -> the buffer of its parts."""
        self._in_flight: dict[str, tuple[list[Buffer], list[Buffer]]] = {}
        """Request -> the buffers of blocks in flight, and scratch memory."""
        self._ends = defaultdict[str, list[int]](list)
        """Block -> where its memory is given up: it is freed, or made anew by a reduce-scatter."""
        for position, node in enumerate(instructions):
            made = effects(node, rank).writes if isinstance(node, ReduceScatter) else ()
            for name in (*frees(node), *made):
                self._ends[name].append(position)
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
            buffer = self.given[name] = Buffer(self.shapes.shape(name), self.dtype(name), True)
            self.buffers.append(buffer)
            self._add(name, buffer)

    def _buffer(self, shape: Shape, dtype: torch.dtype) -> tuple[Buffer, Allocate]:
        """Return a buffer that is allocated here."""
        self.buffers.append(Buffer(shape, dtype))
        return self.buffers[-1], Allocate(self.buffers[-1], self._new[dtype])

    def _add(self, name: str, buffer: Buffer, first: int = 0) -> list[Action]:
        """Give a block its elements of a buffer."""
        shape = self.shapes.shape(name)
        buffer.spans[name] = first, first + prod(shape)
        self.here[name] = buffer
        slot = self.slots[name] = self.slot(name, same)
        observer = self._observer
        if observer is None:
            return []
        return [lambda frame: observer.made(name, list.__getitem__(slot, 0))]

    # Slots

    def slot(self, name: str, view: View | None = None) -> Slot:
        """Return the slot of a block as it is now, or of a view of it that is made once."""
        if view is None:
            return self.slots[name]
        buffer, shape, turned = self.here[name], self.shapes.shape(name), view
        slot: Slot = [None] if self._observer is None else self._observer.slot(name)
        if buffer.shape == shape:
            return buffer.attach(slot, view)
        block = piece(buffer.spans[name][0], shape)
        return buffer.attach(slot, lambda memory: turned(block(memory)))

    def scratch(self, shape: Shape, like: str) -> tuple[Buffer, Allocate]:
        """Return memory for one instruction, or for a message until its wait."""
        return self._buffer(shape, self.dtype(like))

    def pieces(self, names: list[str]) -> tuple[Buffer, list[Slot], Allocate]:
        """Return flat scratch memory for some blocks, and the piece of each in its shape."""
        shapes = [self.shapes.shape(name) for name in names]
        buffer, allocate = self.scratch((sum(map(prod, shapes)),), names[0])
        slots, first = [], 0
        for shape in shapes:
            slots.append(buffer.attach([None], piece(first, shape)))
            first += prod(shape)
        return buffer, slots, allocate

    def line_of(self, names: list[str]) -> Slot | None:
        """Return blocks that are adjacent in one buffer as one flat tensor, else None."""
        buffer, *others = {self.here[name] for name in names}
        spans = [buffer.spans[name] for name in names if name in buffer.spans]
        if others or any(end != first for (_, end), (first, _) in pairwise(spans)):
            return None
        first, size = spans[0][0], spans[-1][1] - spans[0][0]
        slot: Slot = [None] if self._observer is None else self._observer.slot(names[0])
        return buffer.attach(slot, piece(first, (size,)))

    # Messages in flight

    def posted(self, request: str, names: Iterable[str], scratch: list[Buffer]) -> None:
        """Note blocks that are in flight until the wait for a request, with scratch memory."""
        self._in_flight[request] = [self.here[name] for name in names], scratch

    def waited(self, request: str) -> list[Action]:
        """Note that the wait for a request is here; returns the releases of scratch memory."""
        _, scratch = self._in_flight.pop(request, ([], []))
        return [Release(buffer) for buffer in scratch]

    # Room

    def room(self, name: str, *, keep: bool = False) -> list[Action]:
        """Make a block writable; with `keep` its contents stay."""
        old, join = self.here.get(name), self._joins.get((self.place, name))
        is_in_place = join is None or self._opened.get(join.place) is old
        if old is not None and old.writable(name) and is_in_place:
            return []
        return self.renew(name, keep=keep and old is not None)

    def renew(self, name: str, *, keep: bool = False) -> list[Action]:
        """Give a block another buffer; with `keep` its contents are copied."""
        old, left = self.slots.get(name), self.drop(name)
        new: list[Action] = []
        join, first = self._joins.get((self.place, name)), 0
        if join is None or self.is_final(name):
            buffer, allocate = self._buffer(self.shapes.shape(name), self.dtype(name))
            new.append(allocate)
        else:
            if join.place not in self._opened:
                shape, dtype = self.shapes.shape(join.whole), self.dtype(join.whole)
                self._opened[join.place], allocate = self._buffer(shape, dtype)
                new.append(allocate)
            buffer = self._opened[join.place]
            rows = self.shapes.inside(name, join.whole)[0]
            first = rows.start * prod(buffer.shape[1:])
        new += self._add(name, buffer, first)
        if not keep or old is None:
            return [*left, *new]
        # The old memory is given up after the copy.
        releases = [action for action in left if isinstance(action, Release)]
        left = [action for action in left if action not in releases]
        return [*left, *new, copying((self.slots[name], old)), *releases]

    def is_final(self, name: str) -> bool:
        """Return whether the block exists after the last instruction: then the caller gets it."""
        return self.place > self._last_end.get(name, -1)

    def is_planned(self, names: Iterable[str]) -> bool:
        """Return whether blocks that are made here are joined later, and so share a buffer."""
        return all((self.place, name) in self._joins for name in names)

    def takes_over(self, name: str, reads: Sequence[str], index: int = 0) -> bool:
        """Return whether a new block may have the memory of a block that is read here.

        This is the last use of that block, which has its buffer alone. A given one is donated.
        """
        read = reads[index]
        old = self.here.get(read)
        return (
            name not in self.here
            and old is not None
            and (
                read in self._donated and self.given.get(read) is old
                if old.given
                else self._observer is None
            )
            and list(old.spans) == [read]
            and reads.count(read) == 1
            and self._last_use[read] == self.place < self._last_end.get(read, -1)
            and not any(old in buffers for buffers, _ in self._in_flight.values())
            and old.dtype == self.dtype(name)
            and old.shape == self.shapes.shape(name)
        )

    def take_over(self, name: str, old: str) -> list[Action]:
        """Give a new block the memory of another one."""
        return self._add(name, self.here[old])

    # Cut and join

    def cut(self, whole: str, parts: tuple[str, ...], in_place: bool) -> list[Action]:
        """Copy the parts out of the whole, unless they are rows of it that end together.

        Any part keeps all the memory that it is in. Example: if each rank keeps one of four parts
        and frees the others, the copy takes a quarter of the memory. If a reduce-scatter reads all
        four, and they end there, nothing has to be copied.
        """
        if in_place and self._end_together(parts, whole):
            actions = [action for part in parts for action in self.drop(part)]
            buffer, first = self.here[whole], self.here[whole].spans[whole][0]
            width = prod(self.shapes.shape(whole)[1:])
            for part in parts:
                row = self.shapes.inside(part, whole)[0].start
                actions += self._add(part, buffer, first + row * width)
            return [*actions, *self.drop(whole)]
        actions = [action for part in parts for action in self.renew(part)]
        pairs = [
            (self.slots[part], self.slot(whole, _slices(self.shapes.inside(part, whole))))
            for part in parts
        ]
        return [*actions, copying(*pairs), *(self.drop(whole) if in_place else ())]

    def _end_together(self, parts: tuple[str, ...], whole: str) -> bool:
        """Return whether the memory of all parts, rows of the whole, is given up in one place."""
        itemsize = self.dtypes[0].itemsize
        ends = [self._ends[part][bisect_right(self._ends[part], self.place) :] for part in parts]
        if not (self._shares and all(ends)):
            return False
        firsts = [places[0] for places in ends]
        return max(firsts) - min(firsts) < 2 * len(parts) and all(
            are_rows(part, whole, self.shapes, itemsize) for part in parts
        )

    def join(self, parts: tuple[str, ...], whole: str, in_place: bool) -> list[Action]:
        """Join parts: a copy, but of parts that were made in the buffer of the whole."""
        actions = self.drop(whole)
        buffer = self._opened.pop(self.place, None)
        if buffer is not None and all(self.here[part] is buffer for part in parts):
            actions += self._add(whole, buffer)
        else:
            actions += self.renew(whole)
            pairs = [
                (self.slot(whole, _slices(self.shapes.inside(part, whole))), self.slots[part])
                for part in parts
            ]
            actions.append(copying(*pairs))
        return [*actions, *(a for part in parts for a in self.drop(part))] if in_place else actions

    # End

    def drop(self, name: str) -> list[Action]:
        """Remove a block; its buffer is released with its last block."""
        buffer, observer = self.here.pop(name, None), self._observer
        if buffer is None:
            return []
        del buffer.spans[name]
        actions: list[Action] = []
        if observer is not None:
            slot = self.slots[name]
            actions.append(lambda frame: observer.gone(name, list.__getitem__(slot, 0)))
        if self.given.get(name) is buffer:
            actions.append(lambda frame: frame.blocks.pop(name, None))
        return actions if buffer.spans else [*actions, Release(buffer)]

    def end(self) -> list[Action]:
        """Hand the blocks that exist to the caller."""
        slots = {name: self.slots[name] for name in self.here}

        def hand_over(frame: Frame) -> None:
            for name, slot in slots.items():
                frame.blocks[name] = slot[0]

        return [hand_over, *map(Release, dict.fromkeys(self.here.values()))]


def _slices(place: Slices) -> View:
    return lambda block: block[place]
