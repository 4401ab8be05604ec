"""How messages travel: in slots of the receiver or not, and in which order on a communicator.

    slots      0: a send ends when its receive has started (rendezvous). k: it ends once its data is
               in one of the k slots of its channel, that is, when the receive of the k-th message
               before it has ended. None: there is always a slot. A channel is a source, a
               destination and a communicator.
    order      free: every operation runs as soon as it is posted (gloo, MPI).
               communicator: a rank runs the operations of a communicator one after the other, in
               the order in which it posts them (NCCL). A `group` is one operation.
               queue: a rank runs all its operations so, whatever their communicator (NCCL on a GPU
               with one hardware queue, which holds up what NCCL may hold up anywhere).
               peer: as communicator, and messages outside of a `group` use a communicator of
               their two ranks (torch with NCCL; batched messages use that of the process group).

A posted message outside of a `group` is an operation of its own, also next to another one. The
first row of the table is what a program means; the others are what is asked in addition:

    rank 0: isend a -> 1; irecv b <- 1; wait; wait       ends if free
    rank 1: isend b -> 0; irecv a <- 0; wait; wait       hangs by communicator: both send first
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from primepar.schedule.program import Instruction, Message, Program

Order = Literal["free", "communicator", "peer", "queue"]


class Transport(Struct, frozen=True):
    """What is asked of deadlock-freedom; by default what a program means."""

    slots: Annotated[int, Meta(ge=0)] | None = 0
    order: Order = "free"

    @property
    def is_plain(self) -> bool:
        """Whether messages wait for nothing but their other side, if for that."""
        return self.order == "free" and not self.slots

    def __str__(self) -> str:
        slots = "any number of slots" if self.slots is None else f"{self.slots} slots"
        return f"{slots}, order {self.order}"


RENDEZVOUS = Transport()


def on_pairs(program: Program) -> Program:
    """Return the program with a communicator of two ranks for each message outside of a group."""
    return replace(
        program,
        programs=tuple(
            tuple(_on_pair(node, rank) for node in instructions)
            for rank, instructions in enumerate(program.programs)
        ),
    )


def _on_pair(node: Instruction, rank: int) -> Instruction:
    if not isinstance(node, Message):
        return node
    low, high = sorted((rank, node.peer))
    changed: Any = node  # `replace` takes one type, and a node is of several
    moved: Instruction = replace(changed, communicator=f"{node.communicator}.{low}-{high}")
    return moved
