"""Where every block of one rank lies, followed through its instruction list before it runs.

A *borrowed* block is the caller's: it is never written and never joins the pool. A *leaving* block
is an output that the caller keeps: it never comes from the pool. All others are the pool's. Blocks
of a region are views of its tensor, which is opened with the first of them and goes with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from primepar.distributed.buffers import BufferPool, Shape
from primepar.distributed.frame import Action, Frame, Step
from primepar.distributed.messages import Blocks
from primepar.distributed.regions import Held, Region, Window
from primepar.schedule.program import Evict, Free, Instruction

Get = Callable[[Blocks], torch.Tensor]


class Memory(NamedTuple):
    """Whose memory a program runs in: buffers, block shapes, borrowed and leaving blocks.

    `held` are regions that are there before the program, `whole` those that leave as one tensor:
    the caller gives and takes them under their keys, not block by block.
    """

    pool: BufferPool
    shape: Callable[[str], Shape]
    borrowed: Collection[str] = ()
    leaving: Collection[str] = ()
    held: Collection[Held] = ()
    whole: Collection[Region] = ()


@dataclass
class _Opened:
    region: Region
    borrowed: bool
    copies: frozenset[str] = frozenset()
    alive: set[str] = field(default_factory=set)


class Storage:
    """Follows blocks; what must happen for it while a program runs comes out as steps."""

    def __init__(self, memory: Memory, instructions: Iterable[Instruction]) -> None:
        self.memory, self.pool, self.place = memory, memory.pool, 0
        self.here: dict[str, bool] = {}
        self.planned: dict[str, Region] = {}
        """Regions that the next block of a name is to lie in."""
        self._whole = {name: region for region in memory.whole for name in region.names}
        self._open: dict[str, _Opened] = {}
        self._inside: dict[str, str] = {}
        self._last_end = {
            node.block: place
            for place, node in enumerate(instructions)
            if isinstance(node, Free | Evict)
        }

    # What is there

    def begin(self, initial: Iterable[str]) -> Iterator[Step]:
        """Take what is there before the first instruction."""
        self.here.update((name, name in self.memory.borrowed) for name in initial)
        for held in self.memory.held:
            yield from self._opening(held.region, held.copies, held.borrowed, given=True)
            for name in self._open[held.region.key].alive:
                self._inside[name] = held.region.key
                self.here[name] = held.borrowed

    def end(self) -> Iterator[Step]:
        """Leave regions whole, under their keys."""
        views = [name for opened in self._open.values() for name in opened.alive]
        if views:
            yield Step((), lambda frame: [frame.blocks.pop(name) for name in views])

    @property
    def held(self) -> tuple[Held, ...]:
        """Regions that are open."""
        return tuple(Held(each.region, each.borrowed, each.copies) for each in self._open.values())

    @property
    def borrowed(self) -> frozenset[str]:
        """Names and keys of what is the caller's."""
        keys = {key for key, opened in self._open.items() if opened.borrowed}
        return frozenset({name for name, theirs in self.here.items() if theirs} | keys)

    def size(self, name: str) -> int:
        """Elements of a block."""
        return torch.Size(self.memory.shape(name)).numel()

    def strides(self, name: str) -> bool:
        """Whether a block is no contiguous piece of memory."""
        key = self._inside.get(name)
        return key is not None and self._open[key].region.strides

    # Blocks together

    def common(self, names: tuple[str, ...]) -> tuple[Region, Window] | None:
        """The region that all of some blocks lie in side by side, or are to lie in."""
        started = [name for name in names if name in self.here]
        if started and len(started) < len(names):
            return None
        regions = [each.region for each in self._open.values() if self._holds(each, names)]
        if not started:
            planned = {self._region(name) for name in names}
            regions = [region for region in planned if region is not None and len(planned) == 1]
        for region in regions:
            window = region.window(names)
            if window is not None:
                return region, window
        return None

    def _holds(self, opened: _Opened, names: tuple[str, ...]) -> bool:
        return all(name in opened.alive or name in opened.copies for name in names)

    def get(self, names: tuple[str, ...]) -> Get:
        """One tensor of some blocks that lie side by side."""
        found = self.common(names) if len(names) > 1 or names[0] in self._inside else None
        if found is None:
            (name,) = names
            return lambda blocks: blocks[name]
        region, window = found
        key = region.key
        if (len(window.rows), len(window.columns)) == (len(region.rows), len(region.columns)):
            return lambda blocks: blocks[key]
        slices = window.slices(self.memory.shape(names[0]))
        return lambda blocks: blocks[key][slices]

    def contiguous(self, names: tuple[str, ...]) -> bool:
        """Whether some blocks are one contiguous piece of memory."""
        if len(names) == 1:
            return not self.strides(names[0])
        found = self.common(names)
        return found is not None and found[0].in_one_piece(found[1])

    def rests_in_one_piece(self, names: tuple[str, ...]) -> bool:
        """Whether some blocks, made anew, will be one contiguous piece of memory."""
        regions = {self._whole.get(name) for name in names}
        region = regions.pop()
        if regions or region is None:
            return not regions and len(names) == 1
        window = region.window(names)
        return window is not None and region.in_one_piece(window)

    # Room

    def room(self, name: str, *, keep: bool = False) -> Iterator[Step]:
        """A buffer of ours to write `name` to; with `keep` it has the block's old contents."""
        borrowed = self.here.get(name)
        if borrowed is False:
            return
        if borrowed:
            self._part(name)
        region = None if borrowed else self._region(name)
        self.here[name] = False
        if region is not None:
            yield from self._enter(region, name)
            return
        make = self._maker((name,), self.memory.shape(name))
        if borrowed and keep:
            yield Step((), lambda frame: frame.put(name, make().copy_(frame.blocks[name])))
        else:
            yield Step((), lambda frame: frame.put(name, make()))

    def gather(self, region: Region, own: tuple[str, ...]) -> Iterator[Step]:
        """Room for a region whose `own` blocks are copied into it and stay where they are."""
        yield from self._opening(region, frozenset(own), borrowed=False)
        for name in self._open[region.key].alive:
            self.here[name], self._inside[name] = False, region.key

    def renew(self, names: tuple[str, ...]) -> Iterator[Step]:
        """Room of their own for blocks whose old contents are still needed in a region."""
        for name in names:
            self._part(name)
            self.planned.pop(name, None)
            del self.here[name]
            yield from self.room(name)

    def drop(self, name: str) -> Action:
        """Give a block's memory back, or a borrowed one to its owner."""
        borrowed, key = self.here.pop(name), self._inside.get(name)
        if key is None:
            if borrowed:
                return lambda frame: frame.blocks.pop(name)
            return lambda frame: self.pool.release(frame.blocks.pop(name))
        opened = self._open[key]
        self._part(name)
        if opened.alive:
            return lambda frame: frame.blocks.pop(name)
        del self._open[key]

        def close(frame: Frame) -> None:
            frame.blocks.pop(name)
            whole = frame.blocks.pop(key)
            if not borrowed:
                self.pool.release(whole)

        return close

    def _part(self, name: str) -> None:
        """The block is no longer the one in its region."""
        key = self._inside.pop(name, None)
        if key is not None:
            self._open[key].alive.discard(name)

    def _region(self, name: str) -> Region | None:
        return self.planned.get(name) or self._whole.get(name)

    def _enter(self, region: Region, name: str) -> Iterator[Step]:
        if region.key not in self._open:
            yield from self._opening(region, frozenset(), borrowed=False)
            self._open[region.key].alive.clear()
        self._open[region.key].alive.add(name)
        self._inside[name] = region.key
        yield self._viewing(region, [name])

    def _opening(
        self, region: Region, copies: frozenset[str], borrowed: bool, *, given: bool = False
    ) -> Iterator[Step]:
        alive = set(region.names) - copies
        self._open[region.key] = _Opened(region, borrowed, copies, alive)
        if not given:
            make = self._maker(region.names, region.shape(self.memory.shape(region.names[0])))
            yield Step((), lambda frame: frame.put(region.key, make()))
        if given or copies:
            yield self._viewing(region, sorted(alive))

    def _viewing(self, region: Region, names: list[str]) -> Step:
        block = self.memory.shape(region.names[0])
        windows = [(name, region.window((name,))) for name in names]
        views = [(name, window.slices(block)) for name, window in windows if window is not None]

        def view(frame: Frame) -> None:
            whole = frame.blocks[region.key]
            for name, slices in views:
                frame.put(name, whole[slices])

        return Step((), view)

    def _maker(self, names: tuple[str, ...], shape: Shape) -> Callable[[], torch.Tensor]:
        stays = all(
            name in self.memory.leaving and self.place > self._last_end.get(name, -1)
            for name in names
        )
        source = self.pool.fresh if stays else self.pool.acquire
        return lambda: source(shape)
