"""Collectives: the result of each member, and the elements that it sends.

Elements are counted for the usual bandwidth-optimal algorithms. An all-reduce, all-gather or
reduce-scatter is a ring. A broadcast or reduce is a chain in group order from or to the root, in
which every member except the last sends the block once. An all-to-all is direct messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from primepar.errors import MismatchError
from primepar.reference.emulator.provenance import Block
from primepar.schedule.agreement import dispute
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from primepar.schedule.signature import Reduction, Scale

_ROOTED = Gather | Scatter
Combine = Callable[[Sequence[Block], Reduction, Scale], Block]
"""Reduces blocks into one, times a coefficient, or raises `WrongDataError`."""
Given = dict[int, tuple[Block, ...]]
"""Rank -> the blocks that it contributes."""


def results(collective: Collective, rank: int, given: Given, combine: Combine) -> tuple[Block, ...]:
    """Return the blocks that `rank` receives, in the order of `gets`.

    Raises `WrongDataError` for a wrong sum.
    """
    members = collective.group
    match collective:
        case AllReduce() | Reduce():
            if getattr(collective, "root", rank) != rank:
                return ()
            lists = zip(*(given[member] for member in members), strict=True)
            return tuple(
                combine(blocks, collective.reduction, collective.scale_value) for blocks in lists
            )
        case Broadcast(root=root):
            return given[root] if rank != root else ()
        case Scatter(root=root):
            return (given[root][members.index(rank)],)
        case AllGather() | Gather():
            return tuple(given[member][0] for member in members if effects(collective, rank).writes)
        case ReduceScatter():
            member_index = members.index(rank)
            blocks = [given[member][member_index] for member in members]
            return (combine(blocks, collective.reduction, collective.scale_value),)
        case AllToAll():
            member_index = members.index(rank)
            return tuple(given[member][member_index] for member in members)
        case _:
            return ()


def sent(collective: Collective, rank: int, given: Given) -> Fraction:
    """Return the elements that `rank` sends."""
    size, group = len(collective.group), collective.group
    sizes = [block.size for block in given[rank]]
    match collective:
        case AllReduce():
            return Fraction(2 * (size - 1) * sum(sizes), size)
        case Reduce(root=root) | Gather(root=root):
            return Fraction(sizes[0] if rank != root else 0)
        case Broadcast(root=root):
            last = group[group.index(root) - 1]
            return Fraction(given[root][0].size if rank != last else 0)
        case AllGather():
            return Fraction((size - 1) * sizes[0])
        case ReduceScatter():
            return Fraction((size - 1) * sum(sizes), size)
        case AllToAll() | Scatter():
            return Fraction(sum(sizes) - sizes[group.index(rank)] if sizes else 0)
        case _:
            return Fraction(0)


@dataclass
class Meeting:
    """One call of a collective: the members that called, their blocks, and the time it is done."""

    calls: list[Collective] = field(default_factory=list)
    given: Given = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)
    done: float | None = None

    @property
    def first(self) -> Collective:
        """The call that came first."""
        return self.calls[0]

    def missing(self) -> tuple[int, ...]:
        """Return the members that have not called."""
        return tuple(rank for rank in self.first.group if rank not in self.given)

    def __str__(self) -> str:
        """Text for error messages, `devices 1, 2 to call barrier over 0,1,2`."""
        missing = self.missing()
        devices = f"device{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        return f"{devices} to call {claim(self.first)}"


class Meetings:
    """All collective calls, matched in order within each (communicator, group)."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[str, frozenset[int]], list[Meeting]] = {}
        self._calls: dict[tuple[int, str, frozenset[int]], int] = {}

    def join(
        self, collective: Collective, rank: int, given: tuple[Block, ...], time: float
    ) -> Meeting:
        """Join the next call of this group. Raises `MismatchError` if other members differ."""
        if rank not in collective.group:
            raise MismatchError(
                f"expected device {rank} in the group of its own collective, "
                f"got {list(collective.group)}"
            )
        for what, names in () if isinstance(collective, _ROOTED) else _lists(collective):
            if len(names) != len(collective.group):
                raise MismatchError(
                    f"expected {what} to name one block for each of {len(collective.group)} "
                    f"members, got {len(names)}"
                )
        key = (collective.communicator, frozenset(collective.group))
        meetings = self._meetings.setdefault(key, [])
        call = self._calls.get((rank, *key), 0)
        self._calls[(rank, *key)] = call + 1
        if call == len(meetings):
            meetings.append(Meeting())
        meeting = meetings[call]
        meeting.calls.append(collective)
        _check_alike(meeting, rank)
        meeting.given[rank] = given
        meeting.arrivals.append(time)
        if not meeting.missing():
            meeting.done = max(meeting.arrivals) + (0.0 if isinstance(collective, Barrier) else 1.0)
        return meeting


def _lists(collective: Collective) -> Iterator[tuple[str, tuple[str, ...]]]:
    for what in ("blocks", "into"):
        names = getattr(collective, what, None)
        if names is not None:
            yield what, names


def _check_alike(meeting: Meeting, rank: int) -> None:
    """Raise `MismatchError` unless kind, order of the group and all claims are the same."""
    collective = meeting.calls[-1]
    if claim(collective) != claim(meeting.first):
        other = next(iter(meeting.given))
        raise MismatchError(
            f"expected {claim(meeting.first)} as on device {other}, got {claim(collective)}: "
            "call collectives in one order on every member"
        )
    wrong = dispute(list(zip((*meeting.given, rank), meeting.calls, strict=True)))
    if wrong is not None:
        raise MismatchError(
            f"expected {wrong.claim} {wrong.want} of {claim(collective)} on every device, got "
            f"{wrong.got} on device {rank}: write the same on every member"
        )


def claim(collective: Collective) -> str:
    """Return what all members must agree on, `reduce over 0,1 root=0 reduction=sum`."""
    where = "" if collective.communicator == "world" else f" in {collective.communicator}"
    tag = collective.__struct_config__.tag
    rest = [
        f"{what}={getattr(collective, what)}"
        for what in ("root", "reduction", "scale")
        if hasattr(collective, what) and (what != "scale" or collective.scale_value != 1)
    ]
    if isinstance(collective, AllReduce) and collective.also:
        rest.append(f"blocks={len(collective.reduced)}")
    return " ".join([f"{tag}{where} over", ",".join(map(str, collective.group)), *rest])
