"""Communicators that splits make: who is in them, and what uses them wrongly.

Example: four ranks split `world`; ranks 0 and 1 state `into` "low", ranks 2 and 3 "high". A call on
"low" is one of ranks 0 and 1, and only after the split has returned there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from primepar.schedule.program import Collective, SplitCommunicator
from primepar.verify.deadline import in_time
from primepar.verify.program.calls import Fault
from primepar.verify.program.operations import MessageEnd, Operation

Members = dict[tuple[int, str], tuple[int, ...]]
"""(rank, communicator that it made) -> the members."""


def members_made(matched: Mapping[Operation, tuple[Operation, ...]]) -> Members:
    """The members of all communicators that matched splits make."""
    made: Members = {}
    for call, calls in matched.items():
        node = call.instruction
        if isinstance(node, SplitCommunicator) and node.into is not None:
            made[call.rank, node.into] = tuple(
                sorted(other.rank for other in calls if _into(other) == node.into)
            )
    return made


def misused(operations: list[list[Operation]], made: Members) -> Iterator[Fault]:
    """Yield what uses a communicator before it is made, or with ranks outside of it."""
    names = {_into(operation) for line in operations for operation in line} - {None}
    for line in in_time(operations if names else []):
        known: set[str] = set()
        for operation in line:
            if _into(operation) in known:
                yield (
                    operation,
                    (
                        f"expected a new communicator, got {_into(operation)} a second time: "
                        "give it another name"
                    ),
                )
            for item in operation.starts or (operation,):
                used = _used(item)
                if used in names:
                    wrong = _outside(item, used, made) if used in known else _unmade(used)
                    if wrong is not None:
                        yield item, wrong
            new = _into(operation.call) if operation.call else None
            known |= {new} if new else set()


def _into(operation: Operation) -> str | None:
    node = operation.instruction
    return node.into if isinstance(node, SplitCommunicator) else None


def _used(item: MessageEnd | Operation) -> str:
    node = item.message if isinstance(item, MessageEnd) else item.instruction
    return str(getattr(node, "communicator", ""))


def _unmade(name: str) -> str:
    return (
        f"expected communicator {name} to be made on this rank before, got none: "
        "move its split before this"
    )


def _outside(item: MessageEnd | Operation, name: str, made: Members) -> str | None:
    members = made.get((item.rank, name))
    if members is None:
        return None  # the split itself is wrong
    listed = ",".join(map(str, members))
    if isinstance(item, MessageEnd):
        if item.message.peer in (-1, *members):
            return None
        return (
            f"expected a peer out of {listed}, the ranks of {name}, got {item.message.peer}: "
            "send in another communicator, or split it so that both are in it"
        )
    node = item.instruction
    assert isinstance(node, Collective)
    if tuple(sorted(node.group)) == members:
        return None
    got = ",".join(map(str, node.group))
    return f"expected all ranks of {name}, {listed}, in the group, got {got}: call it on all"
