"""Instructions that are done in one: products of a rectangle, collectives of adjoining blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from primepar.distributed.regions import Region, Window
from primepar.schedule.operators import DIMS, PRODUCTS, Dim, block_name, parse_block, tensor_dims
from primepar.schedule.program import AllGather, Compute, Free, Instruction, ReduceScatter


class Series(NamedTuple):
    """Collectives of one group that together gather or scatter a region, whole rows to a member."""

    region: Region
    windows: tuple[Window, ...]
    """The rows of every member, in the order of the group."""
    own: tuple[str, ...]
    """This rank's blocks."""


def series_of(nodes: Sequence[AllGather | ReduceScatter], rank: int) -> Series | None:
    """What collectives of one group make together; None where it is not of this kind."""
    group, place = nodes[0].group, nodes[0].group.index(rank)
    region = Region.of(name for node in nodes for name in node.blocks)
    if region is None or any(node.block != node.blocks[place] for node in nodes):
        return None
    windows = []
    for member in range(len(group)):
        window = region.window(node.blocks[member] for node in nodes)
        if window is None or not region.in_one_piece(window):
            return None
        windows.append(window)
    return Series(region, tuple(windows), tuple(node.block for node in nodes))


def gathers(instructions: Sequence[Instruction], start: int) -> list[AllGather | ReduceScatter]:
    """The all-gathers from `start` on that may be one: of one group, one tensor, all posted."""
    first = instructions[start]
    found: list[AllGather | ReduceScatter] = []
    for node in instructions[start:]:
        if not isinstance(node, AllGather) or not _alike(first, node):
            break
        found.append(node)
    return found


def scatters(instructions: Sequence[Instruction], start: int) -> list[AllGather | ReduceScatter]:
    """The reduce-scatters from `start` on that may be one; what they leave is freed between."""
    first = instructions[start]
    found: list[AllGather | ReduceScatter] = []
    for node in instructions[start:]:
        if isinstance(node, ReduceScatter) and _alike(first, node):
            found.append(node)
        elif not isinstance(node, Free):
            break
    return found


def _alike(first: Instruction, node: AllGather | ReduceScatter) -> bool:
    def claim(each: Instruction) -> tuple[object, ...]:
        block = parse_block(str(getattr(each, "block", "")))
        return (
            *(getattr(each, name, None) for name in ("group", "communicator", "reduction")),
            getattr(each, "request", None) is None,
            block and block.tensor,
        )

    return claim(first) == claim(node)


def touches(node: Instruction, names: Iterable[str]) -> bool:
    """Whether an instruction has to do with one of some blocks."""
    named = [getattr(node, field, ()) for field in ("blocks", "into", "reads")]
    one = [getattr(node, field, "") for field in ("block", "accumulates")]
    inner = getattr(node, "body", ())
    return not {*one, *(name for some in named for name in some)}.isdisjoint(names) or any(
        touches(message, names) for message in inner
    )


def products(instructions: Sequence[Instruction], start: int) -> list[Compute]:
    """The products of one phase that follow one another from `start` on."""
    first = instructions[start]
    found: list[Compute] = []
    for node in instructions[start:]:
        if not isinstance(node, Compute) or node.phase != getattr(first, "phase", None):
            break
        found.append(node)
    return found


def outputs_of(nodes: Iterable[Compute]) -> tuple[str, ...]:
    """Blocks that products are summed into, each once."""
    return tuple(dict.fromkeys(node.accumulates for node in nodes))


def operands_of(nodes: Iterable[Compute], place: int) -> tuple[str, ...]:
    """First or second operands of products, each once."""
    return tuple(dict.fromkeys(node.reads[place] for node in nodes))


def merged(nodes: list[Compute], joins: Callable[[tuple[str, ...]], bool]) -> list[list[Compute]]:
    """Products in parts that are one product each, in their order.

    A dim is done at once where the blocks of every tensor that has it join: they lie in one
    tensor, side by side. Products that make no grid stay apart.
    """
    slices = _grid(nodes)
    if len(nodes) == 1 or slices is None:
        return [[node] for node in nodes]
    roles = _roles(nodes)
    apart = [
        dim
        for dim, at in slices.items()
        if len(at) > 1
        and not all(joins(names) for tensor, names in roles if dim in tensor_dims(tensor))
    ]
    parts: dict[tuple[int, ...], list[Compute]] = {}
    for node in nodes:
        sub_operator = node.sub_operator or {}
        parts.setdefault(tuple(sub_operator[dim] for dim in apart), []).append(node)
    return list(parts.values())


def _roles(nodes: list[Compute]) -> list[tuple[str, tuple[str, ...]]]:
    """Each tensor of a product with the blocks of it."""
    reads, writes = PRODUCTS[nodes[0].phase or "forward"]
    return [
        (reads[0], operands_of(nodes, 0)),
        (reads[1], operands_of(nodes, 1)),
        (writes, outputs_of(nodes)),
    ]


def _grid(nodes: list[Compute]) -> dict[Dim, tuple[int, ...]] | None:
    """Dim -> slices, if the products are all of a grid and read and write their own blocks."""
    keys = {tuple((node.sub_operator or {}).items()) for node in nodes}
    dims = [dim for dim in DIMS if dim in (nodes[0].sub_operator or {})]
    slices = {dim: tuple(sorted({dict(key)[dim] for key in keys})) for dim in dims}
    whole = len(keys) == len(nodes) == prod(map(len, slices.values()))
    return slices if whole and all(map(_is_plain, nodes)) and "B" not in slices else None


def _is_plain(node: Compute) -> bool:
    slices = node.sub_operator or {}
    reads, writes = PRODUCTS[node.phase or "forward"]
    expected = [
        block_name(tensor, tuple(slices[dim] for dim in tensor_dims(tensor) if dim in slices))
        for tensor in (*reads, writes)
    ]
    return [*node.reads, node.accumulates] == expected
