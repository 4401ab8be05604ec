"""A counterexample as a small text picture.

A cycle of waiting ranks has a row for each rank and arrows for its waits; any other story of
instructions has a column for each rank, downward in time. Sub-operators and devices are grids.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.schedule.counterexample import (
    Arrow,
    Counterexample,
    InvolvedDevice,
    InvolvedInstruction,
    Plane,
)

MOST_ROWS = 8
"""Rows of a cycle or a mesh that are drawn; the others are counted."""
_ALONE = ("outside-the-grid", "no-request", "never-awaited", "over-memory", "wrong-traffic")
"""Kinds whose story may be one instruction."""
_FIRST, _NEXT = " --.      .--> ", " --.   '--|--> "
_DOWN, _CLOSED = "   '---.  |", "   '------'"


def counterexample_lines(example: Counterexample, width: int = 94) -> list[str]:
    """Lines of the picture; a story in columns is at most `width` wide, else it is a list."""
    if example.kind == "waiting-cycle":
        return [line.rstrip() for line in _cycle(example)]
    lines = list(_mesh(example, example.mesh)) if example.mesh is not None else []
    if example.plane:
        lines += [""] * bool(lines) + list(_plane(example, example.plane))
    if len(example.events) > 1 or example.kind in _ALONE:
        lines += [""] * bool(lines) + _story(example, width)
    return [line.rstrip() for line in lines]


def event_text(event: InvolvedInstruction) -> str:
    """`3 send X -> 1`, or what there is without an index."""
    return event.text if event.index is None else f"{event.index} {event.text}"


def device_text(device: InvolvedDevice) -> str:
    """`device 2 (r=1, c=0) at t=1`."""
    place = ", ".join(f"{axis}={coordinate}" for axis, coordinate in device.coordinates.items())
    when = "" if device.step is None else f" at t={device.step}"
    return f"device {device.rank}" + f" ({place})" * bool(place) + when


def blocks_text(example: Counterexample) -> str:
    """What is wanted on the device of a mesh, and what is there."""
    want, *got = example.blocks
    if example.kind == "wrong-place":
        return f"needs {want}, has {' '.join(got) or 'nothing'}"
    return f"{want}: on no device" if example.kind == "nowhere" else f"{want}: without a home"


def cycle_rows(
    example: Counterexample,
) -> tuple[list[tuple[InvolvedInstruction, InvolvedInstruction]], int]:
    """For each rank that is drawn what it hangs in and never reaches; and how many are not."""
    pairs = list(zip(example.events[::2], example.events[1::2], strict=True))
    hidden = max(0, len(pairs) - MOST_ROWS)
    return ([*pairs[: MOST_ROWS - 1], pairs[-1]] if hidden else pairs), hidden


def _cycle(example: Counterexample) -> Iterator[str]:
    rows, hidden = cycle_rows(example)
    named = max(len(f"rank {hangs.rank}") for hangs, _ in rows)
    wide = max(len("hangs in"), *(len(event_text(hangs)) for hangs, _ in rows))
    margin = " " * (named + 2 + wide)
    yield f"{'':{named}}  {'hangs in':{wide}}  waits for    never reached"
    for number, (hangs, never) in enumerate(rows):
        rank, lane = f"rank {hangs.rank}", _NEXT if number else _FIRST
        yield f"{rank:{named}}  {event_text(hangs):{wide}}{lane}{event_text(never)}"
        if number < len(rows) - 1:
            more = f"     {hidden} more ranks" if hidden and number == len(rows) - 2 else ""
            yield margin + _DOWN + more
    yield margin + _CLOSED


def _plane(example: Counterexample, plane: Plane) -> Iterator[str]:
    """How often each sub-operator is computed; the one that is wrong in brackets."""
    cell = example.sub_operator or {}
    rest = [
        f"{dim}={index}" for dim, index in cell.items() if dim not in (plane.rows, plane.columns)
    ]
    top, left = plane.first
    wide = len(str(left + len(plane.counts[0]))) + 4
    head = f"{plane.rows}\\{plane.columns}" if plane.rows else plane.columns
    label = max(len(head), len(str(top + len(plane.counts))))
    yield f"{', '.join([str(example.phase), *rest])}: times computed"
    numbers = "".join(f"{left + column} ".rjust(wide) for column in range(len(plane.counts[0])))
    yield f"  {head:>{label}}{numbers}"
    for row, counts in enumerate(plane.counts, start=top):
        name = str(row) if plane.rows else ""
        cells = "".join(
            (f"[{count}]" if column == _at(cell, plane, row) else f"{count} ").rjust(wide)
            for column, count in enumerate(counts, start=left)
        )
        yield f"  {name:>{label}}{cells}"


def _at(cell: dict[str, int], plane: Plane, row: int) -> int | None:
    """The column of the wrong cell, if it is in this row."""
    return cell[plane.columns] if cell.get(plane.rows, row) == row else None


def mesh_rows(example: Counterexample, mesh: dict[str, int]) -> dict[str, list[int]]:
    """Rows of ranks over the last axis, named by the coordinates on the others."""
    *others, last = tuple(mesh) or ("",)
    rows: dict[str, dict[int, int]] = {}
    for rank, coordinates in enumerate(example.places):
        by_axis = dict(zip(mesh, coordinates, strict=True))
        name = " ".join(f"{axis}={by_axis[axis]}" for axis in others)
        rows.setdefault(name, {})[by_axis.get(last, 0)] = rank
    return {name: [row[column] for column in sorted(row)] for name, row in sorted(rows.items())}


def _mesh(example: Counterexample, mesh: dict[str, int]) -> Iterator[str]:
    """The devices of the mesh by rank; the involved in brackets."""
    sides = ", ".join(f"{side}={length}" for side, length in (example.sides or {}).items())
    rows = mesh_rows(example, mesh)
    involved = set(example.ranks)
    shown = [name for name, row in rows.items() if len(rows) <= MOST_ROWS or involved & {*row}]
    last = tuple(mesh)[-1] if mesh else ""
    wide = len(str(len(example.places))) + 4
    label = max((len(name) for name in shown), default=0)
    yield f"devices{f' at {sides}' if sides else ''}"
    across = range(mesh.get(last, 1))
    yield f"  {'':{label}}" + "".join(f"{last}={column} ".rjust(wide) for column in across if last)
    for name in shown:
        cells = (f"[{rank}]" if rank in involved else f"{rank} " for rank in rows[name])
        yield f"  {name:{label}}" + "".join(cell.rjust(wide) for cell in cells)
    yield from (f"  [{device.rank}] {device_text(device)}" for device in example.devices)
    if example.blocks:
        yield "  " + blocks_text(example)


def _story(example: Counterexample, width: int) -> list[str]:
    """Columns of ranks where there is room, else a list."""
    ranks = list(dict.fromkeys(event.rank for event in example.events))
    wide = {
        rank: max(
            len(f"rank {rank}"),
            *(len(_marked(event)) for event in example.events if event.rank == rank),
        )
        for rank in ranks
    }
    starts, left = {}, 0
    for rank in ranks:
        starts[rank] = left
        left += max(wide[rank], 18) + 2
    in_columns = left - 2 <= width
    lines = ["".join(f"  rank {rank}".ljust(max(wide[rank], 18) + 2) for rank in ranks)]
    for place, event in enumerate(example.events):
        for arrow in example.arrows:
            if arrow.target == place and in_columns:
                lines += _arrow(example, arrow, starts)
            elif arrow.target == place:
                lines.append(f"      | {arrow.means}")
        if in_columns:
            lines.append(" " * starts[event.rank] + _marked(event))
        else:
            lines.append(f"{_marked(event)}  on rank {event.rank}")
    return lines if in_columns else lines[1:]


def _marked(event: InvolvedInstruction) -> str:
    role = f"  ({event.role})" if event.role else ""
    return f"{'! ' if event.wrong else '  '}{event_text(event)}{role}"


def _arrow(example: Counterexample, arrow: Arrow, starts: dict[int, int]) -> list[str]:
    """A line from the column of one event to that of the other, with what it means."""
    source, target = (starts[example.events[end].rank] for end in (arrow.source, arrow.target))
    if source == target:
        return [] if arrow.means == "moves to" else [" " * source + f"  | {arrow.means}"]
    room = abs(target - source) - 1
    line = f" {arrow.means} ".center(room - 1, "-")
    drawn = f"'{line}>." if target > source else f".<{line}'"
    return [" " * (min(source, target) + 2) + drawn]
