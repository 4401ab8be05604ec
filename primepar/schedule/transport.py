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

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, cast, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
)

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


# The communicators of a program: which ranks share one, and which posts start as one batch.
#
# A communicator is a name and its members. Those of a collective are its group. The messages named
# "world" have one with all ranks, and those of any other name one with the ranks that post them:
# so two stages of a pipeline need no other rank. Backends that run the operations of a
# communicator in the order of the posts (NCCL) start adjacent posts as one batch, as
# ncclGroupStart and ncclGroupEnd do. Example: `isend a; irecv b; wait` is a batch of two messages,
# of which neither waits for the other; `isend a; compute; irecv b` is two batches, and b starts
# when a has ended. So is `isend a; isend b` to one peer: NCCL runs these one after the other.

Members = tuple[int, ...]
Communicator = tuple[str, Members]
"""A name, and the members in ascending order."""
WORLD = "world"
ROUNDS = 8
"""Rounds of messages that NCCL runs together (`NCCL_MAX_DEV_WORK_P2P_PER_BATCH`)."""
_MESSAGES, _COLLECTIVES = frozenset(get_args(Message)), frozenset(get_args(Collective))
"""A lookup of the type is several times faster than `isinstance` of a union."""


def message_members(program: Program) -> dict[str, Members]:
    """Return the members of each communicator that has messages."""
    users: dict[str, set[int]] = {}
    for rank, instructions in enumerate(program.programs):
        for message in _messages(instructions):
            users.setdefault(message.communicator, set()).add(rank)
    return {
        name: tuple(range(program.ranks)) if name == WORLD else tuple(sorted(ranks))
        for name, ranks in users.items()
    }


def message_peers(program: Program, rank: int) -> dict[str, set[int]]:
    """Return the ranks with which a rank has messages on each communicator."""
    peers: dict[str, set[int]] = {}
    for message in _messages(program.programs[rank]):
        peers.setdefault(message.communicator, set()).add(message.peer)
    return peers


def communicators(program: Program) -> tuple[Communicator, ...]:
    """Return all communicators of more than one rank, in one order for all ranks."""
    needed = dict.fromkeys(message_members(program).items())
    for instructions in program.programs:
        for node in instructions:
            if type(node) in _COLLECTIVES:
                assert isinstance(node, Collective)
                needed[node.communicator, tuple(sorted(node.group))] = None
    return tuple(key for key in needed if len(key[1]) > 1)


def _messages(instructions: Iterable[Instruction]) -> Iterator[Message]:
    for node in instructions:
        if type(node) in _MESSAGES:
            yield cast(Message, node)
        elif type(node) is Group:
            yield from node.body


def joins(batch: Sequence[Message], post: Message, ranks: int) -> bool:
    """Whether a message may be in one batch with others of its communicator on NCCL.

    NCCL numbers the messages of a batch in rounds, by the distance of the two ranks, and runs two
    of one round one after the other, as they use one connection (`addWorkBatchToPlan`). So a second
    message to a peer would wait for all of the first round, with it for receives that the peer may
    send later. Rounds from the ninth on wait for the eight before them: with more than `ROUNDS`
    `ranks` a batch has one peer.
    """
    if any((type(other), other.peer) == (type(post), post.peer) for other in batch):
        return False
    return ranks <= ROUNDS or all(other.peer == post.peer for other in batch)


def split(posts: Iterable[Message], ranks: int) -> Iterator[list[Message]]:
    """Yield adjacent messages, or those of a group, in the batches that NCCL runs together."""
    batch: list[Message] = []
    for post in posts:
        if batch and not (post.communicator == batch[0].communicator and joins(batch, post, ranks)):
            yield batch
            batch = []
        batch.append(post)
    if batch:
        yield batch


def batches(instructions: Iterable[Instruction], ranks: int) -> Iterator[tuple[Instruction, ...]]:
    """Yield the instructions in order, adjacent posts that are one batch together."""
    posts: list[Message] = []
    for node in instructions:
        if isinstance(node, ISend | IRecv):
            posts.append(node)
            continue
        yield from map(tuple, split(posts, ranks))
        posts.clear()
        yield (node,)
    yield from map(tuple, split(posts, ranks))
