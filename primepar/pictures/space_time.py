"""The space-time grid of a program, devices by steps, and its text form.

A cell is what one rank does in one step: the messages it posts, the products that they overlap,
and the collectives after them. Everything is read off the program, so that a schedule which is
wrong can be looked at too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, zip_longest
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from primepar.schedule.evidence import Place, Unmatched
from primepar.schedule.matching import Matches
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
    messages_of,
)
from primepar.schedule.program_file import instruction_line
from primepar.schedule.waits import NEVER, START, WaitGraph, levels

# Where the ranks of a program hang, for a picture of it: read off the wait graph


class Hang(NamedTuple):
    """Where a rank does not go on."""

    instruction: int
    """Index of the instruction that does not return."""
    awaits: tuple[int, ...]
    """Ranks that would have to go on first; none where no rank can help."""


def hangs(program: Program) -> dict[int, Hang]:
    """Rank -> where it hangs, of the ranks that do not come to their end."""
    graph = WaitGraph(Matches(program))
    level = levels(graph)
    first: dict[int, Place] = {}
    for place, node in graph.returns.items():
        if level[node] == NEVER:
            first.setdefault(place[0], place)
    return {
        rank: Hang(place[1], tuple(dict.fromkeys(_awaited(graph, level, place))))
        for rank, place in first.items()
    }


def _awaited(graph: WaitGraph, level: Sequence[int], place: Place) -> Iterator[int]:
    """Yield the ranks that have not come to what an instruction waits for, or never will."""
    for side in graph.needs(place):
        start = graph.starts[side[0]][side[1]]
        if start != START and level[start] == NEVER:
            yield side[0]
    sides = graph.matches.awaited(place)
    for fault in graph.matches.faults:
        if isinstance(fault, Unmatched) and fault.side in sides:
            yield fault.peer


DEADLOCK: Final = "deadlock"
"""Phase of the column in which nothing goes on."""
ENDED = "at its end"


class Standstill(Struct, frozen=True):
    """Where one rank is when nothing goes on any more, in words."""

    text: str
    """The instruction that does not return, or that the rank is at its end."""
    awaits: tuple[int, ...] = ()
    """Ranks that would have to go on first."""
    left: int = 0
    """Instructions that are never reached."""

    @property
    def lines(self) -> list[str]:
        """Where it hangs, whom it waits for, and how much it never reaches."""
        if self.text == ENDED:
            return [self.text]
        devices = f"device{'s' * (len(self.awaits) > 1)} {', '.join(map(str, self.awaits))}"
        lines = [f"hangs in {self.text}", f"waits for {devices if self.awaits else 'nobody'}"]
        return lines + [f"never reaches {self.left} more"] * (self.left > 0)


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

    def __str__(self) -> str:
        """Its text, `I[0,0] -> 1`; where it blocks, after its name."""
        blocking = "" if self.op.startswith("i") else f"{self.op} "
        return f"{blocking}{self.block} {'->' if self.leaves else '<-'} {self.peer}"


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
    devices: tuple[dict[str, int], ...]
    """The coordinates of each rank on the mesh, by axis; none where there is no mesh."""
    cells: tuple[tuple[Cell | None, ...], ...]
    sends: str | None = None
    """What leaves a device over the lower bound, in words, where there is a bound or none."""

    @property
    def places(self) -> list[str]:
        """The coordinates of each rank as text, `r=0 c=1`."""
        return [" ".join(f"{axis}={index}" for axis, index in device.items())
                for device in self.devices]  # fmt: skip

    def only(self, phase: str) -> SpaceTime:
        """The columns of one phase."""
        kept = tuple(column for column in self.cells if head(column).phase == phase)
        return replace(self, cells=kept)


def space_time(
    program: Program, title: str, devices: Sequence[dict[str, int]] = (), steps: int | None = None
) -> SpaceTime:
    """Read the grid off a program.

    `devices` has the coordinates of each rank on the mesh, by axis. Where the number of `steps` of
    a phase is known, each has its share of the products; otherwise a step starts at the first
    message or product after a wait. A column without a product is no step. Of a program that hangs
    only what happens is drawn; then comes a column with the places where its ranks hang.
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
    runs = [
        [list(run) for _, run in groupby(_turns(rank, nodes, counts), key=lambda cell: cell.phase)]
        for rank, nodes in enumerate(done)
    ]
    columns: list[tuple[Cell | None, ...]] = []
    numbers: Counter[str] = Counter()
    for stage in zip_longest(*runs, fillvalue=[]):
        for column in zip_longest(*stage):
            # Columns in which a rank multiplies are the steps of their phase, counted from 0.
            multiplies, phase = any(cell and cell.products for cell in column), head(column).phase
            step = numbers[phase] if multiplies else None
            columns.append(tuple(cell and replace(cell, step=step) for cell in column))
            numbers[phase] += multiplies
    if stops:
        columns.append(tuple(
            Cell(rank, DEADLOCK, standstill=_standstill(nodes, stops.get(rank)))
            for rank, nodes in enumerate(program.programs)
        ))  # fmt: skip
    return SpaceTime(title, tuple(devices) or ({},) * program.ranks, tuple(columns))


def _standstill(nodes: Sequence[Instruction], hang: Hang | None) -> Standstill:
    if hang is None:
        return Standstill(ENDED)
    text = " ".join(instruction_line(nodes[hang.instruction]).split())
    return Standstill(text, hang.awaits, len(nodes) - hang.instruction - 1)


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
        case ISend() | IRecv() | Send() | Recv() | Group():
            messages = (Message(str(one.__struct_config__.tag), one.block, one.peer)
                        for one in messages_of(node))  # fmt: skip
            return replace(cell, messages=(*cell.messages, *messages))
        case _ if group := getattr(node, "group", None):
            blocks = (getattr(node, "block", ""), *getattr(node, "blocks", ()))
            block = blocks[1] if isinstance(node, AllToAll) else blocks[0]
            collective = Collective(instruction_line(node), block, group)
            return replace(cell, collectives=(*cell.collectives, collective))
        case _:
            return cell


# Text


def grid_text(grid: SpaceTime, width: int = 100) -> str:
    """Return the grid as text: a table per phase, a row per device, a column per step.

    `I[0,0] -> 1` leaves for device 1 while the products of the step run, `I[0,1] <- 1` comes
    from there. Tables wider than `width` are cut between steps.
    """
    parts = [grid.title]
    for _, columns in groupby(grid.cells, key=lambda column: head(column).phase):
        parts.append("\n".join(_table(list(columns), grid.places, width)))
    parts += [grid.sends] if grid.sends else []
    return "\n\n".join(parts) + "\n"


def equation(cell: Cell) -> str:
    """Return what the phase of a cell computes, `O[m,k] += I[m,n] * W[n,k]`."""
    if cell.phase not in PRODUCTS:
        return ""
    product = PRODUCTS[cell.phase]
    split = {dim for one in cell.products for dim in one.sub_operator}
    result, left, right = (
        f"{tensor}[{','.join(dim.lower() for dim in tensor_dims(tensor) if dim in split)}]"
        for tensor in (product.writes, *product.reads)
    )
    return f"{result} += {left} * {right}"


def cell_lines(cell: Cell) -> list[str]:
    """Return one line per product, per tensor that moves, and per collective."""
    if cell.standstill is not None:
        return cell.standstill.lines
    lines = [str(product) for product in cell.products]
    by_tensor: dict[str, list[Message]] = {}
    for message in sorted(cell.messages, key=lambda message: not message.leaves):
        by_tensor.setdefault(message.block.partition("[")[0], []).append(message)
    order = dict.fromkeys(message.block.partition("[")[0] for message in cell.messages)
    lines += ["  " + "  ".join(map(str, by_tensor[tensor])) for tensor in order]
    lines += cell.sums
    return lines + [f"  {collective.text}" for collective in cell.collectives]


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
    columns: list[tuple[Cell | None, ...]], places: Sequence[str], width: int
) -> Iterator[str]:
    first_cell = head(columns[0])
    phase = first_cell.phase or "messages"
    names = [f"{rank}  {place}".rstrip() for rank, place in enumerate(places)]
    left = max(map(len, (*names, "device")))
    texts = [[cell_lines(cell) if cell else [] for cell in column] for column in columns]
    wide = [max(len(line) for lines in column for line in ("step 00", *lines)) for column in texts]

    def line(name: str, cells: Sequence[str], first: int) -> str:
        padded = (f"   {text:{size}}" for text, size in zip(cells, wide[first:], strict=False))
        return f"{name:{left}}{''.join(padded)}".rstrip()

    first = 0
    while first < len(columns):
        # As many columns as have room, at least one.
        ends = accumulate(size + 3 for size in wide[first:])
        last = first + max(1, sum(end <= width - left for end in ends))
        yield f"{phase}, continued" if first else f"{phase}  {equation(first_cell)}".rstrip()
        yield line("device", [column_name(column) for column in columns[first:last]], first)
        yield "-" * (left + sum(size + 3 for size in wide[first:last]))
        for rank, name in enumerate(names):
            rows = zip_longest(*(column[rank] for column in texts[first:last]), fillvalue="")
            for number, row in enumerate(rows):
                yield line(name if number == 0 else "", row, first)
        first = last
