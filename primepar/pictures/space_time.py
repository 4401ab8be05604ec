"""The space-time grid of a program, devices by steps, and its text form.

A cell is what one rank does in one step: the messages it posts, the products that they overlap,
and the collectives after them. Everything is read off the program, so that a schedule which is
wrong can be looked at too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from primepar.pictures.hanging import Standstill, hangs, standstills
from primepar.schedule.operators import PRODUCTS, Dim, tensor_dims
from primepar.schedule.program import (
    AllToAll,
    Compute,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.program_file import instruction_line

DEADLOCK: Final = "deadlock"
"""Phase of the column in which nothing goes on."""


class DrawnProduct(Struct, frozen=True, omit_defaults=True):
    """One product of a phase."""

    writes: str
    reads: tuple[str, ...]
    sub_operator: dict[Dim, int]
    scale: str = "1"

    def __str__(self) -> str:
        """Its text, `O[0] += 1/2 * I[0] * W[0]`."""
        factors = self.reads if self.scale == "1" else (self.scale, *self.reads)
        return f"{self.writes} += {' * '.join(factors)}"


class Message(Struct, frozen=True):
    """One end of a message; `op` is which, and whether it blocks."""

    op: str
    block: str
    peer: int

    @property
    def leaves(self) -> bool:
        """Whether this is the sending end."""
        return self.op.endswith("send")


class Collective(Struct, frozen=True):
    """One collective that the rank takes part in."""

    text: str
    block: str
    group: tuple[int, ...]


class Cell(Struct, frozen=True):
    """What one rank does in one step."""

    rank: int
    phase: str
    step: int | None = None
    """Counts the columns of its phase in which a rank multiplies; None in the others."""
    products: tuple[DrawnProduct, ...] = ()
    sums: tuple[str, ...] = ()
    """Additions, other than of a product that waited for its partial sum."""
    messages: tuple[Message, ...] = ()
    collectives: tuple[Collective, ...] = ()
    standstill: Standstill | None = None
    """Only in the last column of a program that hangs."""


class SpaceTime(Struct, frozen=True):
    """The grid: `cells[column][rank]`, columns in order of time; None where a rank has none."""

    title: str
    devices: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    def only(self, phase: str) -> SpaceTime:
        """The columns of one phase."""
        kept = tuple(column for column in self.cells if head(column).phase == phase)
        return replace(self, cells=kept)


def space_time(
    program: Program, title: str, devices: Sequence[str] = (), steps: int | None = None
) -> SpaceTime:
    """Read the grid off a program.

    `devices` has the place of each rank on the mesh. Where the number of `steps` of a phase is
    known, each has its share of the products; otherwise a step starts at the first message or
    product after a wait. A column without a product is no step. Of a program that hangs only
    what happens is drawn; then comes a column with the places where its ranks hang.
    """
    stops = hangs(program)
    done = [nodes[: stops[rank].instruction] if rank in stops else nodes
            for rank, nodes in enumerate(program.programs)]  # fmt: skip
    rows = [list(_turns(rank, nodes, {})) for rank, nodes in enumerate(done)]
    counts: dict[str, int] = {
        phase: steps
        or max(sum(cell.phase == phase and bool(cell.products) for cell in row) for row in rows)
        for phase in PRODUCTS
    }
    rows = [list(_turns(rank, nodes, counts)) for rank, nodes in enumerate(done)]
    runs = [[list(run) for _, run in groupby(row, key=lambda cell: cell.phase)] for row in rows]
    stages = (zip_longest(*stage) for stage in zip_longest(*runs, fillvalue=[]))
    places = tuple(devices) or ("",) * program.ranks
    columns = [*_numbered(chain.from_iterable(stages))]
    if stops:
        columns.append(tuple(
            Cell(rank, DEADLOCK, standstill=standstill)
            for rank, standstill in enumerate(standstills(program, stops))
        ))  # fmt: skip
    return SpaceTime(title, places, tuple(columns))


def _numbered(columns: Iterable[tuple[Cell | None, ...]]) -> Iterator[tuple[Cell | None, ...]]:
    """Columns in which a rank multiplies are the steps of their phase, counted from 0."""
    steps: Counter[str] = Counter()
    for column in columns:
        multiplies, phase = any(cell and cell.products for cell in column), head(column).phase
        step = steps[phase] if multiplies else None
        yield tuple(cell and replace(cell, step=step) for cell in column)
        steps[phase] += multiplies


def _turns(
    rank: int, instructions: Sequence[Instruction], steps: Mapping[str, int]
) -> Iterator[Cell]:
    """Cut one rank's list into cells."""
    products: list[str] = [
        node.phase for node in instructions if isinstance(node, Compute) and node.phase
    ]
    share: dict[str, int] = {
        phase: products.count(phase) // count
        for phase, count in steps.items()
        if count and products.count(phase) % count == 0
    }
    cell, waited = Cell(rank, ""), False
    for node in instructions:
        if _opens(node, cell, waited, share):
            yield cell
            cell, waited = Cell(rank, cell.phase), False
        cell = _with(cell, node)
        if isinstance(node, Wait | Send | Recv | Group):
            waited = True
        elif isinstance(node, Compute) and node.phase:
            waited = False
    if cell.products or cell.messages or cell.collectives or cell.sums:
        yield cell


def _opens(node: Instruction, cell: Cell, waited: bool, share: Mapping[str, int]) -> bool:
    """Whether `node` starts a new cell."""
    if isinstance(node, ISend | IRecv | Send | Recv | Group):
        return bool(cell.products) or waited
    if not isinstance(node, Compute) or not node.phase:
        return False
    if not cell.products:
        received = waited and bool(cell.messages or cell.collectives)
        return received and node.phase != cell.phase and node.phase in share
    done = share.get(node.phase)
    return node.phase != cell.phase or (len(cell.products) >= done if done else waited)


def _with(cell: Cell, node: Instruction) -> Cell:
    match node:
        case Compute(phase=phase, reads=reads, accumulates=block) if phase is not None:
            sub_operator: dict[Dim, int] = node.sub_operator or {}
            product = DrawnProduct(block.rstrip("'"), reads, sub_operator, node.scale)
            return replace(cell, phase=phase, products=(*cell.products, product))
        case Compute(reads=reads) if not all(block.endswith("'") for block in reads):
            return replace(cell, sums=(*cell.sums, instruction_line(node)))
        case ISend() | IRecv() | Send() | Recv():
            return replace(cell, messages=(*cell.messages, _message(node)))
        case Group(body=body):
            return replace(cell, messages=(*cell.messages, *map(_message, body)))
        case _ if group := getattr(node, "group", None):
            blocks = (getattr(node, "block", ""), *getattr(node, "blocks", ()))
            block = blocks[1] if isinstance(node, AllToAll) else blocks[0]
            collective = Collective(instruction_line(node), block, group)
            return replace(cell, collectives=(*cell.collectives, collective))
        case _:
            return cell


def _message(node: ISend | IRecv | Send | Recv) -> Message:
    return Message(str(node.__struct_config__.tag), node.block, node.peer)


# Text


def grid_text(grid: SpaceTime, width: int = 100) -> str:
    """Return the grid as text: a table per phase, a row per device, a column per step.

    `I[0,0] -> 1` leaves for device 1 while the products of the step run, `I[0,1] <- 1` comes
    from there. Tables wider than `width` are cut between steps.
    """
    parts = [grid.title]
    for _, columns in groupby(grid.cells, key=lambda column: head(column).phase):
        parts.append("\n".join(_table(list(columns), grid.devices, width)))
    return "\n\n".join(parts) + "\n"


def equation(cell: Cell) -> str:
    """Return what the phase of a cell computes, `O[m,k] += I[m,n] * W[n,k]`."""
    for phase, product in PRODUCTS.items():
        if phase == cell.phase:
            split = {dim for product in cell.products for dim in product.sub_operator}
            left, right = (_with_dims(tensor, split) for tensor in product.reads)
            return f"{_with_dims(product.writes, split)} += {left} * {right}"
    return ""


def _with_dims(tensor: str, split: set[Dim]) -> str:
    return f"{tensor}[{','.join(dim.lower() for dim in tensor_dims(tensor) if dim in split)}]"


def cell_lines(cell: Cell) -> list[str]:
    """Return one line per product, per tensor that moves, and per collective."""
    if cell.standstill is not None:
        return cell.standstill.lines
    lines = [str(product) for product in cell.products]
    by_tensor: dict[str, list[Message]] = {}
    for message in cell.messages:
        by_tensor.setdefault(message.block.partition("[")[0], []).append(message)
    for messages in by_tensor.values():
        ends = sorted(messages, key=lambda message: not message.leaves)
        lines.append("  " + "  ".join(map(_message_text, ends)))
    lines += cell.sums
    return lines + [f"  {collective.text}" for collective in cell.collectives]


def _message_text(message: Message) -> str:
    blocking = "" if message.op.startswith("i") else f"{message.op} "
    return f"{blocking}{message.block} {'->' if message.leaves else '<-'} {message.peer}"


def head(column: Sequence[Cell | None]) -> Cell:
    """The first cell of a column, which stands for all of them."""
    return next(cell for cell in column if cell is not None)


def column_name(column: Sequence[Cell | None]) -> str:
    """The name of a column: its step, `moves` without a product, or that nothing goes on."""
    if head(column).phase == DEADLOCK:
        return "nothing goes on"
    step = head(column).step
    return "moves" if step is None else f"step {step}"


def _table(
    columns: list[tuple[Cell | None, ...]], devices: Sequence[str], width: int
) -> Iterator[str]:
    first_cell = head(columns[0])
    phase = first_cell.phase or "messages"
    names = [f"{rank}  {place}".rstrip() for rank, place in enumerate(devices)]
    left = max(map(len, (*names, "device")))
    over = [column_name(column) for column in columns]
    texts = [[cell_lines(cell) if cell else [] for cell in column] for column in columns]
    wide = [max(len(line) for lines in column for line in ("step 00", *lines)) for column in texts]
    for first, last in _cuts(wide, width - left):
        yield f"{phase}, continued" if first else f"{phase}  {equation(first_cell)}".rstrip()
        yield _line("device", left, over[first:last], wide[first:])
        yield "-" * (left + sum(size + 3 for size in wide[first:last]))
        for rank, name in enumerate(names):
            rows = zip_longest(*(column[rank] for column in texts[first:last]), fillvalue="")
            for number, row in enumerate(rows):
                yield _line(name if number == 0 else "", left, row, wide[first:])


def _cuts(wide: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns that fit into `room`, at least one column each."""
    first, used = 0, 0
    for place, size in enumerate(wide):
        if place > first and used + size + 3 > room:
            yield first, place
            first, used = place, 0
        used += size + 3
    yield first, len(wide)


def _line(name: str, left: int, row: Sequence[str], wide: Sequence[int]) -> str:
    cells = "".join(f"   {text:{size}}" for text, size in zip(row, wide, strict=False))
    return f"{name:{left}}{cells}".rstrip()
