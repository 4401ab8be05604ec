"""What must hold after the last instruction: the grid covered, every final block finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product

from primepar.errors import IncompleteError
from primepar.reference.emulator.error_places import ErrorPlaces
from primepar.reference.emulator.expected_contents import Contents, sub_operator_text
from primepar.reference.emulator.provenance import Block
from primepar.schedule.meaning import Phase
from primepar.schedule.program import Compute, Cut, Join

Computed = dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]]
"""(phase, slices in the order of its grid) -> (rank, place in its program) of every compute."""
Memories = Sequence[Mapping[str, Block]]


def check_coverage(contents: Contents, computed: Computed, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every sub-operator of the grid was computed exactly once."""
    for phase, grid in (contents.program.grid or {}).items():
        for slices in product(*map(range, grid.values())):
            at = computed.get((phase, slices), [])
            if len(at) == 1:
                continue
            where = ", ".join(f"programs[{rank}][{place}]" for rank, place in at) or "nowhere"
            method = f"{places.sequence}: " if places.sequence else ""
            text = sub_operator_text(phase, dict(zip(grid, slices, strict=True)))
            raise IncompleteError(
                f"{method}expected {text} to be computed exactly once, "
                f"got it {len(at)} times: {where}"
            )


def check_final(contents: Contents, blocks: Memories, hosts: Memories, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every block of `final` is in its place and finished.

    An output block of the grid that is not in `final` must be read by an instruction. Without
    `final` every one must be finished anywhere, a host included.
    """
    final = contents.program.final
    if final is None:
        for phase in contents.meaning.phases.values():
            for name in output_blocks(phase):
                _check_somewhere(contents, name, [*blocks, *hosts], places)
    for rank, names in enumerate(final or ()):
        for name in names:
            if name not in blocks[rank]:
                raise IncompleteError(
                    f"{places.device(rank)}: expected {name} in its memory at the end, "
                    f"got it {_holders(name, blocks)}"
                )
            wanting = contents.wanting(name, blocks[rank][name])
            if wanting:
                raise IncompleteError(f"{places.device(rank)}: at the end {wanting}")
    if final is not None:
        _check_none_lost(contents, places)


def _check_none_lost(contents: Contents, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` for an output block of the grid that neither ends nor is used."""
    program = contents.program
    used = {name for names in program.final or () for name in names}
    for node in chain.from_iterable(program.programs):
        match node:
            case Compute(reads=names) | Join(blocks=names):
                used.update(names)
            case Cut(block=name):
                used.add(name)
    ends = set(map(contents.meaning.place, used))
    for phase in contents.meaning.phases.values():
        for name in output_blocks(phase):
            if contents.meaning.place(name) not in ends:
                method = f"{places.sequence}: " if places.sequence else ""
                raise IncompleteError(
                    f"{method}expected {name} in final on some device, or read, got neither"
                )


def output_blocks(phase: Phase) -> list[str]:
    """Names of the blocks that a phase of the grid makes; none without a grid."""
    grid = phase.grid or {}
    dims = [dim for dim in grid if dim in phase.writes.dims]
    if phase.grid is None:
        return []
    ranges = [range(grid[dim]) for dim in dims]
    names = (phase.writes.block(dict(zip(dims, at, strict=True))) for at in product(*ranges))
    return list(dict.fromkeys(names))


def _check_somewhere(
    contents: Contents, name: str, memories: Memories, places: ErrorPlaces
) -> None:
    wanting = [contents.wanting(name, held[name]) for held in memories if name in held]
    if all(wanting):
        method = f"{places.sequence}: " if places.sequence else ""
        raise IncompleteError(
            f"{method}at the end {wanting[0]}"
            if wanting
            else f"{method}expected {name} in some memory at the end, got it in none"
        )


def _holders(name: str, blocks: Memories) -> str:
    ranks = [str(rank) for rank, held in enumerate(blocks) if name in held]
    return f"on device{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else "on no device"
