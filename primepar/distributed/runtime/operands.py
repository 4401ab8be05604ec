"""The contiguous tensors that a message or a collective takes: memory of blocks, or copies."""

from __future__ import annotations

from dataclasses import dataclass, field

from primepar.distributed.runtime.collectives import in_order, places
from primepar.distributed.runtime.memory import Allocate, Buffer, Slot, copying
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.running import Action
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Collective,
    IRecv,
    Message,
    Recv,
    Reduce,
    ReduceScatter,
)


@dataclass
class Operands:
    """What communication reads and writes; copies are made `before` it starts, and `after` it."""

    places: MemoryPlaces
    names: list[str] = field(default_factory=list)
    """Blocks whose own memory is in flight."""
    scratch: list[Buffer] = field(default_factory=list)
    before: list[Action] = field(default_factory=list)
    after: list[Action] = field(default_factory=list)
    given: Slot = field(default_factory=list)
    taken: Slot = field(default_factory=list)

    @classmethod
    def of_message(cls, places: MemoryPlaces, message: Message) -> Operands:
        """Return the tensor of a message; a received block gets memory."""
        operands, name = cls(places), message.block
        receives = isinstance(message, Recv | IRecv)
        if receives:
            operands.before += places.room(name)
        operands.given = operands._whole(name)
        return operands

    @classmethod
    def of_collective(cls, places: MemoryPlaces, node: Collective, rank: int) -> Operands:
        """Return the tensors of a collective; the blocks that it makes get memory."""
        operands = cls(places)
        match node:
            case Barrier():
                pass
            case ReduceScatter(block=block):
                operands.given = operands._flat(in_order(node))
                operands.before += places.renew(block)
                operands.taken = operands._flat([block])
            case AllGather():
                operands._gather(node)
            case AllReduce(also=also) if also:
                operands._several(node.reduced)
            case AllToAll():
                operands._exchange(node)
            case _:
                operands._one(node, rank)
        return operands

    def _one(self, node: Collective, rank: int) -> None:
        """The block of an all-reduce, a reduce or a broadcast."""
        reads, writes = effects(node, rank).reads, effects(node, rank).writes
        for name in writes:
            self.before += self.places.room(name, keep=name in reads)
        (name,) = {*reads, *writes}
        if isinstance(node, Reduce) and not writes:
            # Torch may overwrite what other members than the root send.
            buffer, allocate = self.places.scratch(self.places.shapes.shape(name), name)
            self.given = self._of(buffer, allocate)
            self.before.append(copying((self.given, self.places.slot(name))))
        else:
            self.given = self._whole(name)

    def _several(self, names: tuple[str, ...]) -> None:
        """The blocks of an all-reduce as one line: their memory, or else a copy."""
        for name in names:
            self.before += self.places.room(name, keep=True)
        self.given = self._flat(list(names), writes=True)

    def _whole(self, name: str) -> Slot:
        """Return a block in its shape."""
        self.names.append(name)
        return self.places.slot(name)

    def _of(self, buffer: Buffer, allocate: Allocate) -> Slot:
        """Return all of some scratch memory."""
        self.before.append(allocate)
        self.scratch.append(buffer)
        return buffer.attach([None])

    def _flat(self, names: list[str], *, writes: bool = False) -> Slot:
        """Return blocks as one line: their memory, or a copy, copied back after what `writes`."""
        line = self.places.line_of(names)
        if line is not None:
            self.names += names
            return line
        buffer, pieces, allocate = self.places.pieces(names)
        whole = self._of(buffer, allocate)
        blocks = [self.places.slot(name) for name in names]
        self.before.append(copying(*zip(pieces, blocks, strict=True)))
        if writes:
            self.after.append(copying(*zip(blocks, pieces, strict=True)))
        return whole

    def _gather(self, node: AllGather) -> None:
        """This rank's block, and all members' blocks as one line."""
        mine = node.block
        planned = self.places.is_planned(node.blocks)
        for name in node.blocks:
            if planned or name != mine:  # this rank's block stays as it is
                self.before += self.places.room(name, keep=name == mine)
        self.given = self._flat([mine])
        self.taken = self._line(in_order(node), mine)

    def _exchange(self, node: AllToAll) -> None:
        """One line per direction, the form that gloo supports too."""
        given = [node.blocks[place] for place in places(node)]
        gotten = [node.into[place] for place in places(node)]
        for name in gotten:
            self.before += self.places.room(name, keep=name in given)
        # A copy, as a block that is sent may be one that is filled.
        buffer, pieces, allocate = self.places.pieces(given)
        self.given = self._of(buffer, allocate)
        blocks = [self.places.slot(name) for name in given]
        self.before.append(copying(*zip(pieces, blocks, strict=True)))
        self.taken = self._line(gotten)

    def _line(self, names: list[str], mine: str | None = None) -> Slot:
        """Return what is filled: adjacent blocks, or memory from which all but one are copied."""
        line = self.places.line_of(names)
        if line is not None:
            self.names += names
            return line
        buffer, pieces, allocate = self.places.pieces(names)
        pairs = [
            (self.places.slot(name), piece)
            for name, piece in zip(names, pieces, strict=True)
            if name != mine
        ]
        self.after.append(copying(*pairs))
        return self._of(buffer, allocate)
