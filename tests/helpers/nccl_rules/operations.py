"""What a rank puts into the stream of a communicator, and what a collective computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

Reduction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
REDUCTIONS: dict[str, Reduction] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum
}  # fmt: skip


@dataclass(frozen=True)
class Content:
    """What is on its way; its bytes are there when the stream has come to the post."""

    elements: int
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Content:
        return cls(tensor.numel(), str(tensor.dtype).removeprefix("torch."))

    def tensor(self, data: bytes) -> torch.Tensor:
        dtype = getattr(torch, self.dtype)
        return (
            torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        )

    def __str__(self) -> str:
        return f"{self.elements} {self.dtype}"


@dataclass
class PeerMessage:
    """One send or receive; `peer` is a rank of the world."""

    sends: bool
    peer: int
    content: Content

    def __str__(self) -> str:
        way = "send to" if self.sends else "recv from"
        return f"{way} {self.peer} of {self.content}"


@dataclass
class Batch:
    """Messages that start together. `left` are the positions of those that have not ended."""

    messages: Sequence[PeerMessage]
    left: set[int] = field(default_factory=set)

    def first(self, peer: int, *, sends: bool) -> int | None:
        """Return the position of the next message of one kind with a peer, if its round runs.

        The second messages with all peers are a round, which begins when the first ones have ended.
        """
        seen = Counter[tuple[int, bool]]()
        rounds = []
        for message in self.messages:
            rounds.append(seen[message.peer, message.sends])
            seen[message.peer, message.sends] += 1
        running = min((rounds[place] for place in self.left), default=0)
        places = (
            place
            for place, message in enumerate(self.messages)
            if place in self.left
            and rounds[place] == running
            and (message.peer, message.sends) == (peer, sends)
        )
        return next(places, None)

    def __str__(self) -> str:
        return " + ".join(str(self.messages[place]) for place in sorted(self.left))


@dataclass(frozen=True)
class CollectiveCall:
    """One member's call of a collective. `splits` are of an all-to-all: given, then gotten."""

    kind: str
    members: tuple[int, ...]
    content: Content
    root: int = -1
    reduction: str = ""
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def alike(self) -> tuple[object, ...]:
        """What all members must call alike."""
        # The members of an all-to-all may have different sizes.
        elements = -1 if self.kind == "all_to_all" else self.content.elements
        return self.kind, self.members, elements, self.content.dtype, self.root, self.reduction

    def __str__(self) -> str:
        details = [f"root {self.root}"] * (self.root >= 0) + [self.reduction] * bool(self.reduction)
        return " ".join([self.kind, "of", str(self.content), *details])


def results(calls: Sequence[CollectiveCall], given: Sequence[bytes]) -> list[bytes | None]:
    """Return what each member gets, in the order of the members; None where it is nothing."""
    first = calls[0]
    tensors = [call.content.tensor(data) for call, data in zip(calls, given, strict=True)]
    members = len(calls)
    match first.kind:
        case "broadcast":
            root = first.members.index(first.root)
            return [given[root]] * members
        case "all_gather":
            return [bytes_of(torch.cat(tensors))] * members
        case "all_to_all":
            return [bytes_of(part) for part in _exchanged(calls, tensors)]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = REDUCTIONS[first.reduction](total, tensor)
    if first.kind == "reduce_scatter":
        return [bytes_of(part) for part in total.view(members, -1)]
    gets = [first.kind == "all_reduce" or rank == first.root for rank in first.members]
    return [bytes_of(total) if is_given else None for is_given in gets]


def _exchanged(
    calls: Sequence[CollectiveCall], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    parts = [
        torch.split(tensor, list(call.splits[0]))
        for call, tensor in zip(calls, tensors, strict=True)
    ]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of all elements, in their order."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
