"""Notes the calls of process groups and the waits of a run, to compare them with its program.

The methods of the process groups are replaced for the time of a run by ones that note the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


class ObservedCall(NamedTuple):
    """A message, a collective, a wait for one of them, or a call of a kernel."""

    what: str
    with_whom: tuple[object, ...] = ()
    elements: int = 0

    def __str__(self) -> str:
        """Its text in error messages, `send 3 of 64 elements`."""
        of = f" of {self.elements} elements" if self.elements else ""
        return f"{self.what} {', '.join(map(str, self.with_whom))}{of}"


METHODS: dict[str, tuple[str, int]] = {
    "send": ("send", 0),
    "recv": ("recv", 0),
    "allreduce": ("all_reduce", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter", 0),
    "reduce_scatter_single": ("reduce_scatter", 0),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "barrier": ("barrier", -1),
}
"""Method of a process group, in older and newer torch -> instruction, and the position of the
argument whose elements are counted. A call of any other method is not observed; then the expected
call is missing, and the run is refused."""


class Seen:
    """What was observed since the last instruction; ranks count from the process `first`."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.calls: list[ObservedCall] = []
        self.messages: list[ObservedCall] = []
        """Those of the calls that are messages of a batch, until it ends."""
        self.read: set[str] = set()
        self.made: set[str] = set()
        self.gone: set[str] = set()

    def clear(self) -> None:
        """Forget everything, before the next instruction."""
        self.calls.clear()
        self.messages.clear()
        self.read.clear()
        self.made.clear()
        self.gone.clear()


def waited(call: ObservedCall) -> ObservedCall:
    """Return the wait for a call."""
    return call._replace(what=f"wait for {call.what}")


class _Work:
    """A `Work` of torch that notes every wait."""

    def __init__(self, work: Any, calls: list[ObservedCall], seen: Seen) -> None:
        self._work, self._calls, self._seen = work, calls, seen

    def wait(self, *arguments: Any) -> Any:
        """Wait."""
        self._seen.calls += map(waited, self._calls)
        return self._work.wait(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextmanager
def watched_groups(seen: Seen) -> Iterator[None]:
    """Note every call of a process group within the context.

    A backend that is written in Python is a subclass with methods of its own.
    """
    kinds = {dist.ProcessGroup, type(dist.group.WORLD or dist.ProcessGroup)}
    # From `vars`, not `getattr`: the raw methods can be put back into the class.
    kept = [
        (kind, name, method)
        for kind in kinds
        for name, method in vars(kind).items()
        if name in METHODS or name == "_end_coalescing"
    ]
    for kind, name, _ in kept:
        method = getattr(kind, name)
        noting = _noting(method, *METHODS[name], seen) if name in METHODS else _ending(method, seen)
        setattr(kind, name, noting)
    try:
        yield
    finally:
        for kind, name, method in kept:
            setattr(kind, name, method)


def _noting(method: Callable[..., Any], op: str, place: int, seen: Seen) -> Callable[..., Any]:
    def noted(group: dist.ProcessGroup, *arguments: Any, **named: Any) -> _Work:
        tensors = arguments[place] if place >= 0 else []
        tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if tensors else None
        members = [process - seen.first for process in dist.get_process_group_ranks(group)]
        peers = (members[arguments[1]],) if op in ("send", "recv") else tuple(sorted(members))
        call = ObservedCall(op, peers, 0 if tensor is None else tensor.numel())
        seen.calls.append(call)
        if op in ("send", "recv"):
            seen.messages.append(call)
        return _Work(method(group, *arguments, **named), [call], seen)

    return noted


def _ending(method: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    """Return the method that ends a batch: its work is that of all messages since the last one."""

    def noted(group: dist.ProcessGroup, *arguments: Any) -> _Work:
        messages, seen.messages = seen.messages, []
        return _Work(method(group, *arguments), messages, seen)

    return noted
