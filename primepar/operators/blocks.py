"""The blocks that instructions name: under other names, and given back once they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from msgspec.structs import replace

from primepar.schedule.program import Free, Instruction, Wait

_ONE, _SEVERAL = ("block", "accumulates"), ("blocks", "into", "reads")


@cache
def _fields(kind: type[Instruction]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields of a kind of instruction that hold a block, and those that hold several."""
    one, several = (
        tuple(name for name in names if name in kind.__struct_fields__)
        for names in (_ONE, _SEVERAL)
    )
    return one, several


def blocks_of(node: Instruction) -> tuple[str, ...]:
    """Names of all blocks that an instruction but a group names."""
    one, several = _fields(type(node))
    names = tuple(getattr(node, field) for field in one)
    for field in several:
        names += getattr(node, field)
    return names


def renamed(node: Instruction, block: Callable[[str], str], label: str) -> Instruction:
    """The instruction with other names for its blocks, and its request and phase labelled."""
    one, several = _fields(type(node))
    changes: dict[str, Any] = {field: block(getattr(node, field)) for field in one}
    for field in several:
        changes[field] = tuple(map(block, getattr(node, field)))
    posted, phase = _request(node), getattr(node, "phase", None)
    if posted is not None:
        changes["request"] = f"{label} {posted}"
    if phase is not None:
        changes["phase"] = f"{label}.{phase}"
    return replace(node, **changes)


def freed(instructions: Iterable[Instruction], kept: Iterable[str]) -> list[Instruction]:
    """The same with a free after the last use of every block that is not `kept`.

    What is sent or received is in use until its wait. Where the last use is a free, as operators
    end what moves within them, that is left to them.
    """
    last: dict[str, int] = {}
    posted: dict[str, tuple[str, ...]] = {}
    done = list(instructions)
    for place, node in enumerate(done):
        request, blocks = _request(node), blocks_of(node)
        if request is not None and isinstance(node, Wait):
            blocks = posted.pop(request)
        elif request is not None:
            posted[request] = blocks
        last.update(dict.fromkeys(blocks, place))
    ends: dict[int, list[Free]] = {}
    keeps = set(kept)
    for block, place in last.items():
        if block not in keeps and not isinstance(done[place], Free):
            ends.setdefault(place, []).append(Free(block))
    return [each for place, node in enumerate(done) for each in (node, *ends.get(place, ()))]


def _request(node: Instruction) -> str | None:
    """What a message or collective is posted under, or what a wait waits for."""
    request: str | None = getattr(node, "request", None)
    return request
