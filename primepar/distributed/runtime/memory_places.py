"""Assigns memory to the blocks of one rank, by a walk over its list before it runs.

A block has a buffer of its own, or is a view of a shared one. Views are the parts of a block that
is cut, and parts that are made in one buffer because they are joined later. A block that overlaps
another one is never written: it first gets a buffer of its own. Given blocks are never written and
never pooled. Blocks that exist at the end are not pooled either.
Example: `cut c -> (a, b)` makes `a` and `b` views of the buffer of `c`; a later sum into `a` first
copies `a` to a new buffer, because `c` still views the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import pairwise
from math import prod

import torch

from primepar.distributed.runtime.buffers import BufferPool
from primepar.distributed.runtime.joins import LaterJoin, LaterJoins
from primepar.distributed.runtime.memory import Buffer, all_of
from primepar.distributed.runtime.messages import Action, Blocks, Frame
from primepar.distributed.runtime.shapes import Shapes, Slices
from primepar.schedule.program import Instruction
from primepar.schedule.program_uses import frees

Get = Callable[[Blocks], torch.Tensor]


class MemoryPlaces:
    """Tracks the buffer of every block; its methods return the actions to do at run time."""

    def __init__(
        self,
        shapes: Shapes,
        pools: tuple[BufferPool, BufferPool],
        instructions: tuple[Instruction, ...],
        joins: LaterJoins,
        *,
        shares: bool = True,
    ) -> None:
        self.shapes, self.pools, self.place = shapes, pools, 0
        self.here: dict[str, Buffer] = {}
        self._joins, self._shares = joins, shares
        self._opened: dict[int, Buffer] = {}
        self._count = 0
        self._last_end = {
            name: position for position, node in enumerate(instructions) for name in frees(node)
        }

    def pool(self, name: str) -> BufferPool:
        """Return the pool of a block's dtype."""
        return self.pools[self.shapes.wide(name)]

    def begin(self, names: Iterable[str]) -> None:
        """Register the blocks that exist before the first instruction."""
        for name in names:
            self._fill(name, Buffer(self.shapes.shape(name), given=True))

    def leaves(self, name: str, place: int = -1) -> bool:
        """Return whether the block exists after the last instruction: then the caller gets it."""
        return max(self.place, place) > self._last_end.get(name, -1)

    def _fill(self, name: str, buffer: Buffer) -> None:
        """Register a block that fills its buffer."""
        buffer.views[name] = all_of(buffer.shape)
        self.here[name] = buffer

    def _new(self, name: str, place: int = -1) -> Buffer:
        """Return a buffer for a block that is made here, or at a later `place` in the list."""
        return Buffer.new(self.shapes.shape(name), self.pool(name), self.leaves(name, place))

    # Room

    def room(self, name: str, *, keep: bool = False) -> list[Action]:
        """Make a block writable; with `keep` its contents stay."""
        old, join = self.here.get(name), self._joins.get((self.place, name))
        if old is not None and old.writable(name) and (join is None or self._is_in(old, join)):
            return []
        return self.renew(name, keep=keep and old is not None)

    def renew(self, name: str, *, keep: bool = False) -> list[Action]:
        """Give a block another buffer; with `keep` its contents are copied."""
        aside, join = f"{name}#", self._joins.get((self.place, name))
        actions: list[Action] = []
        if keep:
            actions = [lambda f: _put(f.blocks, aside, f.blocks[name])]
        actions += self._leave(name)
        if join is not None:
            actions += self._enter(join, name)
        else:
            buffer = self._new(name)
            self._fill(name, buffer)
            actions += [lambda f: _put(f.blocks, name, buffer.make())]
        if keep:
            actions += [lambda f: f.blocks[name].copy_(f.blocks.pop(aside))]
        return actions

    def is_planned(self, names: Iterable[str]) -> bool:
        """Return whether blocks that are made here are joined later, and so share a buffer."""
        return all((self.place, name) in self._joins for name in names)

    def _is_in(self, buffer: Buffer, join: LaterJoin) -> bool:
        return self._opened.get(join.place) is buffer

    def adopt(self, name: str) -> list[Action]:
        """Register a block whose tensor a later action makes; its old memory is released."""
        actions = self._leave(name)
        self._fill(name, Buffer(self.shapes.shape(name)))
        return actions

    def _enter(self, join: LaterJoin, name: str) -> list[Action]:
        """Give a block its place in the buffer of the block that it is joined into later."""
        actions: list[Action] = []
        if join.place not in self._opened:
            self._opened[join.place] = self._new(join.whole, join.place)
            self._opened[join.place].key = key = self._key(join.whole)
            actions = [lambda f: _put(f.blocks, key, buffer.make())]
        buffer = self._opened[join.place]
        return [*actions, self._view(buffer, {name: self.shapes.inside(name, join.whole)})]

    def _key(self, name: str) -> str:
        self._count += 1
        return f"{name}#{self._count}"

    def _view(self, buffer: Buffer, views: dict[str, Slices]) -> Action:
        """Make blocks views of a shared buffer."""
        key, pairs = buffer.key, list(views.items())
        buffer.views.update(views)
        self.here.update(dict.fromkeys(views, buffer))

        def view(frame: Frame) -> None:
            blocks = frame.blocks
            whole = blocks[key]
            for name, place in pairs:
                blocks[name] = whole[place]

        return view

    # End

    def drop(self, name: str) -> Action:
        """Remove a block, and return its memory to its pool."""
        shared, leave = self.here[name].key, self._leave(name)
        if not shared and leave:
            return leave[0]
        if leave:
            return lambda frame: (frame.blocks.pop(name), leave[0](frame))
        return lambda frame: frame.blocks.pop(name)

    def _leave(self, name: str) -> list[Action]:
        """Detach a block from its buffer, which is released with its last block."""
        buffer = self.here.pop(name, None)
        if buffer is None:
            return []
        del buffer.views[name]
        if buffer.views or (buffer.pool is None and not buffer.key):
            return []
        key = buffer.key or name
        if buffer.pool is None:
            return [lambda frame: frame.blocks.pop(key)]
        idle = buffer.pool.shelf(buffer.shape)
        return [lambda frame: idle.append(frame.blocks.pop(key))]

    def end(self) -> list[Action]:
        """Remove the shared buffers from the dict, so that only blocks remain."""
        keys = list(dict.fromkeys(buffer.key for buffer in self.here.values() if buffer.key))
        return [lambda frame: [frame.blocks.pop(key) for key in keys]] if keys else []

    # Cut and join

    def cut(self, whole: str, parts: tuple[str, ...], in_place: bool) -> list[Action]:
        """Make the parts views of the whole; parts that the caller gets at the end are copies."""
        actions = [action for part in parts for action in self._leave(part)]
        inside = {part: self.shapes.inside(part, whole) for part in parts}
        views = self._views(whole, inside)
        buffer, base = self.here[whole], self.here[whole].views[whole]
        if views and not buffer.key:
            key = buffer.key = self._key(whole)
            actions += [lambda f: _put(f.blocks, key, f.blocks[whole])]
        if views:
            actions += [self._view(buffer, {part: _shifted(inside[part], base) for part in views})]
        for part in parts:
            if part not in views:
                actions += self.room(part)
                actions += [self._copying(part, whole, inside[part])]
        return [*actions, self.drop(whole)] if in_place else actions

    def _views(self, whole: str, parts: Collection[str]) -> list[str]:
        """Return the parts that may be views.

        They are all parts that end before the program does; or all parts, if all leave with a
        buffer that the caller can own.
        """
        narrow = any(self.shapes.wide(part) != self.shapes.wide(whole) for part in parts)
        if not self._shares or narrow:
            return []
        buffer, leaving = self.here[whole], [part for part in parts if self.leaves(part)]
        if len(leaving) < len(parts) or buffer.given or self.leaves(whole):
            return [part for part in parts if part not in leaving]
        buffer.hand_over()
        return leaving

    @staticmethod
    def _copying(part: str, whole: str, place: Slices) -> Action:
        return lambda frame: frame.blocks[part].copy_(frame.blocks[whole][place])

    def join(self, parts: tuple[str, ...], whole: str, in_place: bool) -> list[Action]:
        """Join parts: a view if they are adjacent in one buffer, else a copy."""
        inside = {part: self.shapes.inside(part, whole) for part in parts}
        actions = self._leave(whole)
        place = self._side_by_side(whole, inside)
        if place is not None:
            actions += [self._view(self.here[parts[0]], {whole: place})]
        else:
            actions += [*self.room(whole), _gluing(whole, inside)]
        return [*actions, *(self.drop(part) for part in parts)] if in_place else actions

    def _side_by_side(self, whole: str, inside: dict[str, Slices]) -> Slices | None:
        """Return the place of the whole in the buffer that its parts share; None if they do not.

        Each part gives a start of the whole: its own start less its offset in the whole. The parts
        are adjacent as in the whole if all starts are equal.
        """
        buffers = {self.here[part] for part in inside}
        buffer = buffers.pop()
        if buffers or not buffer.key:
            return None
        if self.leaves(whole) and not self._may_leave(buffer, inside):
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

    def _may_leave(self, buffer: Buffer, parts: Collection[str]) -> bool:
        """Hand a buffer over to the caller if it holds only these parts; return whether it does."""
        alone = not buffer.given and buffer.views.keys() == set(parts)
        if alone and not any(map(self.leaves, parts)):
            buffer.hand_over()
            return True
        return False

    # In one piece

    def strided(self, name: str) -> bool:
        """Return whether a block is not contiguous in memory."""
        return self.here[name].span(name) is None

    def run_of(self, names: list[str]) -> Get | None:
        """Return blocks that are adjacent in one buffer as one flat tensor, else None."""
        buffers = {self.here[name] for name in names}
        buffer = buffers.pop()
        spans = [None] if buffers or not buffer.key else [buffer.span(name) for name in names]
        if None in spans:
            return None
        ends = [span for span in spans if span is not None]
        if any(a[1] != b[0] for a, b in pairwise(ends)):
            return None
        key, first, last = buffer.key, ends[0][0], ends[-1][1]
        if (first, last) == (0, prod(buffer.shape)):
            return lambda blocks: blocks[key].view(-1)
        return lambda blocks: blocks[key].view(-1)[first:last]

    def flat(self, names: list[str]) -> tuple[list[Action], Get]:
        """Return some blocks as one flat tensor: their memory, or a copy by the actions."""
        run = self.run_of(names)
        if run is not None:
            return [], run
        key = self._key(names[0])
        return [_flattening(key, names)], lambda blocks: blocks.pop(key)


def _flattening(key: str, names: list[str]) -> Action:
    def flatten(frame: Frame) -> None:
        blocks = frame.blocks
        blocks[key] = torch.cat([blocks[name].flatten() for name in names])

    return flatten


def _shifted(place: Slices, base: Slices) -> Slices:
    pairs = zip(place, base, strict=True)
    return tuple(slice(line.start + b.start, line.stop + b.start) for line, b in pairs)


def _put(blocks: Blocks, name: str, block: torch.Tensor) -> None:
    blocks[name] = block


def _gluing(whole: str, inside: dict[str, Slices]) -> Action:
    pairs = list(inside.items())

    def glue(frame: Frame) -> None:
        blocks = frame.blocks
        into = blocks[whole]
        for name, place in pairs:
            into[place] = blocks[name]

    return glue
