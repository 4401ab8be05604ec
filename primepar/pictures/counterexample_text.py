"""A counterexample as a small text picture.

A circle of waiting ranks has a row for each rank and arrows for its waits; any other story of
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
"""Rows of a circle or a mesh that are drawn; the others are counted."""
_ALONE = ("outside-the-grid", "no-request", "never-awaited", "over-memory", "wrong-traffic")
"""Kinds whose story may be one instruction."""
_FIRST, _NEXT = " --.      .--> ", " --.   '--|--> "
_DOWN, _CLOSED = "   '---.  |", "   '------'"


def counterexample_lines(found: Counterexample, width: int = 94) -> list[str]:
    """Lines of the picture; a story in columns is at most `width` wide, else it is a list."""
    if found.kind == "waiting-circle":
        return [line.rstrip() for line in _circle(found)]
    lines = list(_mesh(found, found.mesh)) if found.mesh is not None else []
    if found.plane:
        lines += [""] * bool(lines) + list(_plane(found, found.plane))
    if len(found.events) > 1 or found.kind in _ALONE:
        lines += [""] * bool(lines) + _story(found, width)
    return [line.rstrip() for line in lines]


def event_text(event: InvolvedInstruction) -> str:
    """`3 send X -> 1`, or what there is without an index."""
    return event.text if event.index is None else f"{event.index} {event.text}"


def device_text(device: InvolvedDevice) -> str:
    """`device 2 (r=1, c=0) at t=1`."""
    place = ", ".join(f"{axis}={at}" for axis, at in device.coordinates.items())
    when = "" if device.step is None else f" at t={device.step}"
    return f"device {device.rank}" + f" ({place})" * bool(place) + when


def blocks_text(found: Counterexample) -> str:
    """What is wanted on the device of a mesh, and what is there."""
    want, *got = found.blocks
    if found.kind == "wrong-place":
        return f"wants {want}, has {' '.join(got) or 'nothing'}"
    return f"{want}: on no device" if found.kind == "nowhere" else f"{want}: without a home"


def circle_rows(
    found: Counterexample,
) -> tuple[list[tuple[InvolvedInstruction, InvolvedInstruction]], int]:
    """For each rank that is drawn what it hangs in and never reaches; and how many are not."""
    pairs = list(zip(found.events[::2], found.events[1::2], strict=True))
    hidden = max(0, len(pairs) - MOST_ROWS)
    return ([*pairs[: MOST_ROWS - 1], pairs[-1]] if hidden else pairs), hidden


def _circle(found: Counterexample) -> Iterator[str]:
    rows, hidden = circle_rows(found)
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


def _plane(found: Counterexample, plane: Plane) -> Iterator[str]:
    """How often each sub-operator is computed; the one that is wrong in brackets."""
    cell = found.sub_operator or {}
    rest = [f"{dim}={at}" for dim, at in cell.items() if dim not in (plane.rows, plane.columns)]
    top, left = plane.first
    wide = len(str(left + len(plane.counts[0]))) + 4
    head = f"{plane.rows}\\{plane.columns}" if plane.rows else plane.columns
    label = max(len(head), len(str(top + len(plane.counts))))
    yield f"{', '.join([str(found.phase), *rest])}: times computed"
    numbers = "".join(f"{left + at} ".rjust(wide) for at in range(len(plane.counts[0])))
    yield f"  {head:>{label}}{numbers}"
    for row, counts in enumerate(plane.counts, start=top):
        name = str(row) if plane.rows else ""
        cells = "".join(
            (f"[{count}]" if at == _at(cell, plane, row) else f"{count} ").rjust(wide)
            for at, count in enumerate(counts, start=left)
        )
        yield f"  {name:>{label}}{cells}"


def _at(cell: dict[str, int], plane: Plane, row: int) -> int | None:
    """The column of the wrong cell, if it is in this row."""
    return cell[plane.columns] if cell.get(plane.rows, row) == row else None


def mesh_rows(found: Counterexample, mesh: dict[str, int]) -> dict[str, list[int]]:
    """Rows of ranks over the last axis, named by the coordinates on the others."""
    *others, last = tuple(mesh) or ("",)
    rows: dict[str, dict[int, int]] = {}
    for rank, coordinates in enumerate(found.places):
        at = dict(zip(mesh, coordinates, strict=True))
        name = " ".join(f"{axis}={at[axis]}" for axis in others)
        rows.setdefault(name, {})[at.get(last, 0)] = rank
    return {name: [row[at] for at in sorted(row)] for name, row in sorted(rows.items())}


def _mesh(found: Counterexample, mesh: dict[str, int]) -> Iterator[str]:
    """The devices of the mesh by rank; the involved in brackets."""
    sides = ", ".join(f"{side}={length}" for side, length in (found.sides or {}).items())
    rows = mesh_rows(found, mesh)
    involved = set(found.ranks)
    shown = [name for name, row in rows.items() if len(rows) <= MOST_ROWS or involved & {*row}]
    last = tuple(mesh)[-1] if mesh else ""
    wide = len(str(len(found.places))) + 4
    label = max((len(name) for name in shown), default=0)
    yield f"devices{f' at {sides}' if sides else ''}"
    across = range(mesh.get(last, 1))
    yield f"  {'':{label}}" + "".join(f"{last}={at} ".rjust(wide) for at in across if last)
    for name in shown:
        cells = (f"[{rank}]" if rank in involved else f"{rank} " for rank in rows[name])
        yield f"  {name:{label}}" + "".join(cell.rjust(wide) for cell in cells)
    yield from (f"  [{device.rank}] {device_text(device)}" for device in found.devices)
    if found.blocks:
        yield "  " + blocks_text(found)


def _story(found: Counterexample, width: int) -> list[str]:
    """Columns of ranks where there is room, else a list."""
    ranks = list(dict.fromkeys(event.rank for event in found.events))
    wide = {
        rank: max(
            len(f"rank {rank}"),
            *(len(_marked(event)) for event in found.events if event.rank == rank),
        )
        for rank in ranks
    }
    starts, at = {}, 0
    for rank in ranks:
        starts[rank] = at
        at += max(wide[rank], 18) + 2
    in_columns = at - 2 <= width
    lines = ["".join(f"  rank {rank}".ljust(max(wide[rank], 18) + 2) for rank in ranks)]
    for place, event in enumerate(found.events):
        for arrow in found.arrows:
            if arrow.target == place and in_columns:
                lines += _arrow(found, arrow, starts)
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


def _arrow(found: Counterexample, arrow: Arrow, starts: dict[int, int]) -> list[str]:
    """A line from the column of one event to that of the other, with what it means."""
    source, target = (starts[found.events[at].rank] for at in (arrow.source, arrow.target))
    if source == target:
        return [] if arrow.means == "moves to" else [" " * source + f"  | {arrow.means}"]
    room = abs(target - source) - 1
    line = f" {arrow.means} ".center(room - 1, "-")
    drawn = f"'{line}>." if target > source else f".<{line}'"
    return [" " * (min(source, target) + 2) + drawn]
