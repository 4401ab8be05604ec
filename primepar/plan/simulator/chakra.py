"""Programs as Chakra execution traces, one file for each rank, for simulators that read them.

Chakra is MLCommons' format of execution traces (Sridharan et al., arXiv 2305.14516); ASTRA-sim
reads it. A trace is a list of protobuf messages, each after its length: `GlobalMetadata`, then a
`Node` for each instruction. The schema is chakra/schema/protobuf/et_def.proto, of the package
mlc-chakra 1.0.0. A node waits for the nodes in `ctrl_deps`: an instruction for the one before it on
its rank, and after a `wait` for what was posted. So the order is that of the program.

The messages are encoded here, as their fields are few: numbers, texts and lists of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from primepar.plan.simulator.work import Work
from primepar.schedule.effects import effects
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)

VERSION: Final = "0.0.4"
"""Of the schema."""
LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 3, 4, 5, 6, 7
"""`NodeType` of the schema."""
COLLECTIVES: Final[dict[type[Instruction], int]] = {
    AllReduce: 0, Reduce: 1, AllGather: 2, Broadcast: 5, AllToAll: 6, ReduceScatter: 7, Barrier: 9,
}  # fmt: skip
"""`CollectiveCommType` of the schema."""
INT64, UINT64, BOOL, TEXT = 9, 13, 27, 29
"""Fields of `AttributeProto` with a value."""

Attributes = Mapping[str, tuple[int, int | str]]
"""Name -> field of its value, and the value."""


def chakra_trace(work: Work, rank: int) -> bytes:
    """The trace of one rank of a program; `work` has the bytes and operations of instructions."""
    return b"".join(map(_sized, (_message([(1, VERSION)]), *_nodes(work, rank))))


def _nodes(work: Work, rank: int) -> Iterator[bytes]:
    """The encoded nodes of a rank, in order."""
    before: list[int] = []
    posted: dict[str, int] = {}
    number = 0
    for node in work.program.programs[rank]:
        if isinstance(node, Wait):
            before.append(posted.pop(node.request))
            continue
        started = []
        for part in node.body if isinstance(node, Group) else (node,):
            fields = _fields(work, rank, part)
            if fields is None:
                continue
            yield _node(number, before, *fields)
            started.append(number)
            number += 1
        request = getattr(node, "request", None)
        if request is not None:
            posted[request] = started[0]
        elif started:
            before = started


def _fields(work: Work, rank: int, node: Instruction) -> tuple[str, int, Attributes] | None:
    """Name, type and attributes of an instruction's node; None for what takes no time."""
    match node:
        case Compute() | Cut() | Join():
            if getattr(node, "in_place", False):
                return None
            sizes: Attributes = {"num_ops": (INT64, work.operations(node)),
                                 "tensor_size": (UINT64, work.touched(node))}  # fmt: skip
            name = getattr(node, "phase", None) or str(node.__struct_config__.tag)
            return name, COMPUTE, {"is_cpu_op": (BOOL, 0)} | dict(sizes)
        case Send() | ISend() | Recv() | IRecv():
            sends = isinstance(node, Send | ISend)
            ends = (rank, node.peer) if sends else (node.peer, rank)
            return node.block, SEND if sends else RECEIVE, {
                "is_cpu_op": (BOOL, 0),
                "comm_src": (INT64, ends[0]),
                "comm_dst": (INT64, ends[1]),
                "comm_size": (INT64, work.bytes(node.block)),
                "comm_tag": (INT64, node.tag),
            }  # fmt: skip
        case Fetch() | Evict():
            kind = LOAD if isinstance(node, Fetch) else STORE
            return node.block, kind, {"tensor_size": (UINT64, work.bytes(node.block))}
        case _ if isinstance(node, Collective):
            return _collective(work, rank, node)
        case _:
            return None


def _collective(work: Work, rank: int, node: Collective) -> tuple[str, int, Attributes]:
    """The node of a collective; its size is that of the whole tensor that a rank gives or gets."""
    of = effects(node, rank)
    given, gotten = (sum(map(work.bytes, names)) for names in (of.reads, of.writes))
    return str(node.__struct_config__.tag), COLLECTIVE, {
        "is_cpu_op": (BOOL, 0),
        "comm_type": (INT64, COLLECTIVES[type(node)]),
        "comm_size": (INT64, max(given, gotten)),
        "pg_name": (TEXT, " ".join(map(str, node.group))),
    }  # fmt: skip


def _node(number: int, before: Iterable[int], name: str, kind: int, more: Attributes) -> bytes:
    attributes = (_message([(1, key), value]) for key, value in more.items())
    return _message([(1, number), (2, name), (3, kind), (4, tuple(before)),
                     *((10, attribute) for attribute in attributes)])  # fmt: skip


def _message(fields: Iterable[tuple[int, int | str | bytes | tuple[int, ...]]]) -> bytes:
    """A protobuf message: numbers as varints, texts and messages after their length."""
    encoded = b""
    for field, value in fields:
        if isinstance(value, int):
            encoded += _varint(field << 3) + _varint(value)
            continue
        if isinstance(value, tuple):
            value = b"".join(map(_varint, value))
        elif isinstance(value, str):
            value = value.encode()
        encoded += _varint(field << 3 | 2) + _sized(value)
    return encoded


def _sized(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the last byte has its highest bit clear."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
