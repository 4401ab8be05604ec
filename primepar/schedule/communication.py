"""What a program moves, tensor by tensor: broadcasts, gathers, shifts and travelling sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from primepar.schedule.operators import PRODUCTS
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Group,
    Instruction,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Send,
)

_OUTPUTS = {product.writes for product in PRODUCTS.values()}
_COLLECTIVES = {
    Broadcast: "broadcast",
    AllGather: "all-gather",
    AllToAll: "all-to-all",
    Reduce: "reduce",
    ReduceScatter: "reduce-scatter",
    AllReduce: "all-reduce",
}


class Move(Struct, frozen=True):
    """One way in which blocks of one tensor travel.

    `way` is a collective, `shift` for an operand that goes to one other device, or `travelling
    sum` for an output that does.
    """

    way: str
    tensor: str
    times: int
    """On the device that does it most often; a message counts where it is sent."""


def moves(program: Program) -> tuple[Move, ...]:
    """Every way in which a tensor travels in a program, in the order of its first occurrence."""
    most: dict[tuple[str, str], int] = {}
    for instructions in program.programs:
        counts = Counter(way for node in instructions for way in _ways(node))
        for key, count in counts.items():
            most[key] = max(most.get(key, 0), count)
    return tuple(Move(way, tensor, times) for (way, tensor), times in most.items())


def moves_text(kinds: tuple[Move, ...]) -> str:
    """Moves in a line, `broadcast I 6, W 6; reduce dI 3`; `nothing` where there are none."""
    ways = dict.fromkeys(move.way for move in kinds)
    tensors = (
        ", ".join(f"{move.tensor} {move.times}" for move in kinds if move.way == way)
        for way in ways
    )
    return "; ".join(f"{way} {text}" for way, text in zip(ways, tensors, strict=True)) or "nothing"


def _ways(node: Instruction) -> Iterator[tuple[str, str]]:
    match node:
        case ISend(block=block) | Send(block=block):
            tensor = _tensor(block)
            yield ("travelling sum" if tensor in _OUTPUTS else "shift"), tensor
        case Group(body=body):
            yield from (way for inner in body for way in _ways(inner))
        case AllToAll(blocks=blocks):
            yield _COLLECTIVES[AllToAll], _tensor(blocks[0])
        case AllReduce():
            yield from ((_COLLECTIVES[AllReduce], _tensor(block)) for block in node.reduced)
        case AllGather() | Broadcast() | Reduce() | ReduceScatter():
            yield _COLLECTIVES[type(node)], _tensor(node.block)


def _tensor(block: str) -> str:
    return block.partition("[")[0]
