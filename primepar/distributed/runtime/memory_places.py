"""Cuts, joins and blocks as lines: where the memory of one block is that of others.

Views are the parts of a block that is cut, and parts that are made in one buffer because they are
joined later. A block that overlaps another one is never written: it first gets a buffer of its own.
Example: `cut c -> (a, b)` makes `a` and `b` views of the buffer of `c`; a later sum into `a` first
copies `a` to a new buffer, because `c` still views the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from primepar.distributed.runtime.buffer_places import BufferPlaces
from primepar.distributed.runtime.memory import Buffer, Slot, View, all_of
from primepar.distributed.runtime.memory_actions import copying, gluing
from primepar.distributed.runtime.messages import Action
from primepar.distributed.runtime.shapes import Slices


class MemoryPlaces(BufferPlaces):
    """Adds to `BufferPlaces` the blocks that are views of shared buffers."""

    def takes_over(self, name: str, reads: Sequence[str], index: int = 0) -> bool:
        """Return whether a new block may have the memory of a block that is read here.

        This is the last use of that block, which fills its buffer alone. A given one is donated.
        """
        read = reads[index]
        old = self.here.get(read)
        return (
            name not in self.here
            and old is not None
            and (self._is_donated(read, old) if old.owner == "given" else self._observer is None)
            and list(old.views) == [read]
            and reads.count(read) == 1
            and self._last_use[read] == self.place < self._last_end.get(read, -1)
            and not any(old in buffers for buffers in self._in_flight.values())
            and old.dtype == self.dtype(name)
            and old.shape == self.shapes.shape(name)
        )

    def _is_donated(self, name: str, buffer: Buffer) -> bool:
        return name in self._donated and self.given.get(name) is buffer

    def take_over(self, name: str, old: str) -> list[Action]:
        """Give a new block the memory of another one."""
        buffer = self.here[old]
        if self.leaves(name) or name in self._evicted:
            buffer.hand_over()
        return self._view(buffer, {name: all_of(buffer.shape)})

    def is_alias(self, name: str, source: str) -> bool:
        """Return whether a new block that equals another one may be a view of it.

        The caller gets no such view. A block that is written later is copied first.
        """
        return (
            name not in self.here
            and self._shares
            and self._observer is None
            and not self.leaves(name)
            and name not in self._evicted
            and self.dtype(name) == self.dtype(source)
        )

    def alias(self, name: str, source: str) -> list[Action]:
        """Make a block a view of another one."""
        buffer = self.here[source]
        return self._view(buffer, {name: buffer.views[source]})

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


def _part(place: Slices) -> View:
    return lambda block: block[place]


def _shifted(place: Slices, base: Slices) -> Slices:
    pairs = zip(place, base, strict=True)
    return tuple(slice(line.start + b.start, line.stop + b.start) for line, b in pairs)
