"""Assigns memory to the blocks of one rank, by a walk over its list before it runs.

A block has a buffer of its own, or is a view of a shared one. Views are the parts of a block that
is cut, and parts that are made in one buffer because they are joined later. A block that overlaps
another one is never written: it first gets a buffer of its own. Given blocks are never written.
Blocks that exist at the end have memory of their own, which the caller owns. All other buffers are
in the arena, where they and their views are made once.
Example: `cut c -> (a, b)` makes `a` and `b` views of the buffer of `c`; a later sum into `a` first
copies `a` to a new buffer, because `c` still views the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

import torch

from primepar.distributed.runtime.joins import LaterJoin, LaterJoins
from primepar.distributed.runtime.memory import Buffer, Slot, View, all_of
from primepar.distributed.runtime.memory_actions import (
    Allocate,
    Release,
    copying,
    gluing,
    gone,
    handing_over,
    made,
    removing,
)
from primepar.distributed.runtime.messages import Action
from primepar.distributed.runtime.shapes import Shape, Shapes, Slices
from primepar.schedule.program import Evict, Free, Instruction
from primepar.schedule.program_uses import frees, uses

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
            for name in uses(node, rank)
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
        owner = "arena" if self._observer is None else "run"
        buffer = Buffer(shape, dtype, owner, self.place, self.place)  # type: ignore[arg-type]
        self.buffers.append(buffer)
        return buffer

    # Slots

    def slot(self, name: str, view: View | None = None) -> Slot:
        """Return the slot of a block as it is now, or of a view of it that is made once."""
        if view is None:
            return self.slots[name]
        buffer = self.here[name]
        place, turned = buffer.views[name], view
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

    def takes_over(self, name: str, reads: Sequence[str]) -> bool:
        """Return whether a new block may have the memory of the first block that is read here.

        The caller has donated that block, this is its last use, and it fills its buffer alone.
        """
        old = self.here.get(reads[0])
        return (
            name not in self.here
            and old is not None
            and reads[0] in self._donated
            and self.given.get(reads[0]) is old
            and list(old.views) == [reads[0]]
            and reads[0] not in reads[1:]
            and self._last_use[reads[0]] == self.place < self._last_end.get(reads[0], -1)
            and old.dtype == self.dtype(name)
            and old.shape == self.shapes.shape(name)
        )

    def take_over(self, name: str, old: str) -> list[Action]:
        """Give a new block the memory of a donated block."""
        buffer = self.here[old]
        return self._view(buffer, {name: all_of(buffer.shape)})

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
        """Hand the blocks that exist to the caller; buffers in flight are needed up to `place`."""
        for buffers in self._in_flight.values():
            for buffer in buffers:
                buffer.last = place
        return [handing_over({name: self.slots[name] for name in self.here})]

    # Cut and join

    def cut(self, whole: str, parts: tuple[str, ...], in_place: bool) -> list[Action]:
        """Make the parts views of the whole; parts that the caller gets at the end are copies."""
        actions = [action for part in parts for action in self.drop(part)]
        inside = {part: self.shapes.inside(part, whole) for part in parts}
        views = self._views(whole, inside)
        buffer, base = self.here[whole], self.here[whole].views[whole]
        if views:
            actions += self._view(buffer, {part: _shifted(inside[part], base) for part in views})
        for part in parts:
            if part not in views:
                actions += self.room(part)
                actions += [copying(self.slots[part], self.slot(whole, _part(inside[part])))]
        return [*actions, *self.drop(whole)] if in_place else actions

    def _views(self, whole: str, parts: Collection[str]) -> list[str]:
        """Return the parts that may be views.

        They are all parts that end before the program does; or all parts, if all leave with a
        buffer that the caller can own.
        """
        narrow = any(self.shapes.wide(part) != self.shapes.wide(whole) for part in parts)
        if not self._shares or narrow:
            return []
        buffer, leaving = self.here[whole], [part for part in parts if self.leaves(part)]
        if len(leaving) < len(parts) or buffer.owner == "given" or self.leaves(whole):
            return [part for part in parts if part not in leaving]
        buffer.hand_over()
        return leaving

    def join(self, parts: tuple[str, ...], whole: str, in_place: bool) -> list[Action]:
        """Join parts: a view if they are adjacent in one buffer, else a copy."""
        inside = {part: self.shapes.inside(part, whole) for part in parts}
        actions = self.drop(whole)
        place = self._side_by_side(whole, inside)
        if place is not None:
            actions += self._view(self.here[parts[0]], {whole: place})
        else:
            actions += self.room(whole)
            pieces = [(self.slot(whole, _part(inside[part])), self.slots[part]) for part in parts]
            actions += [gluing(pieces)]
        return [*actions, *(a for part in parts for a in self.drop(part))] if in_place else actions

    def _side_by_side(self, whole: str, inside: dict[str, Slices]) -> Slices | None:
        """Return the place of the whole in the buffer that its parts share; None if they do not.

        Each part gives a start of the whole: its own start less its offset in the whole. The parts
        are adjacent as in the whole if all starts are equal.
        """
        buffers = {self.here[part] for part in inside}
        buffer = buffers.pop()
        if buffers or not self._shares or buffer.dtype != self.dtype(whole):
            return None
        if self.leaves(whole) and not self._maydrop(buffer, inside):
            return None
        starts = {
            tuple(
                view.start - offset.start
                for view, offset in zip(buffer.views[part], offsets, strict=True)
            )
            for part, offsets in inside.items()
        }
        start = starts.pop()
        shape = self.shapes.shape(whole)
        place = tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
        return None if starts else place

    def _maydrop(self, buffer: Buffer, parts: Collection[str]) -> bool:
        """Hand a buffer over to the caller if it holds only these parts; return whether it does."""
        alone = buffer.owner != "given" and buffer.views.keys() == set(parts)
        if alone and not any(map(self.leaves, parts)):
            buffer.hand_over()
            return True
        return False

    # In one piece

    def strided(self, name: str) -> bool:
        """Return whether a block is not contiguous in memory."""
        return self.here[name].span(name) is None

    def run_of(self, names: list[str]) -> Slot | None:
        """Return blocks that are adjacent in one buffer as one flat tensor, else None."""
        buffers = {self.here[name] for name in names}
        buffer = buffers.pop()
        if buffers:
            return None
        spans = [buffer.span(name) for name in names]
        if None in spans:
            return None
        ends = [span for span in spans if span is not None]
        if any(a[1] != b[0] for a, b in pairwise(ends)):
            return None
        first, last = ends[0][0], ends[-1][1]
        return buffer.attach(self._slot(names[0]), lambda whole: whole.view(-1)[first:last])

    def flat(self, names: list[str]) -> tuple[list[Action], Slot, Buffer]:
        """Return some blocks as one flat tensor: their memory, or a copy by the actions."""
        run = self.run_of(names)
        if run is not None:
            return [], run, self.here[names[0]]
        buffer, slots, actions = self.pieces(names)
        pairs = list(zip(slots, (self.slots[name] for name in names), strict=True))
        return [*actions, gluing(pairs)], buffer.attach([None], lambda whole: whole), buffer

    def pieces(self, names: list[str]) -> tuple[Buffer, list[Slot], list[Action]]:
        """Return flat scratch memory for some blocks, and the piece of each in its shape."""
        sizes = [prod(self.shapes.shape(name)) for name in names]
        buffer, actions = self.scratch((sum(sizes),), names[0])
        slots, first = [], 0
        for name, size in zip(names, sizes, strict=True):
            slots.append(buffer.attach([None], _piece(first, self.shapes.shape(name))))
            first += size
        return buffer, slots, actions


def _part(place: Slices) -> View:
    return lambda block: block[place]


def _piece(first: int, shape: Shape) -> View:
    return lambda flat: flat[first : first + prod(shape)].view(shape)


def _shifted(place: Slices, base: Slices) -> Slices:
    pairs = zip(place, base, strict=True)
    return tuple(slice(line.start + b.start, line.stop + b.start) for line, b in pairs)
