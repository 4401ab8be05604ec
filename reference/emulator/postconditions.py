"""Postconditions of a run: the grid is covered, and every final block is finished."""

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
"""(phase, slices in the order of its grid) -> (rank, position in its list) of every compute."""
Memories = Sequence[Mapping[str, Block]]


def check_coverage(contents: Contents, computed: Computed, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every sub-operator of the grid was computed exactly once."""
    for phase, grid in (contents.program.grid or {}).items():
        for slices in product(*map(range, grid.values())):
            computes = computed.get((phase, slices), [])
            if len(computes) == 1:
                continue
            where = ", ".join(f"programs[{rank}][{place}]" for rank, place in computes) or "nowhere"
            method = f"{places.sequence}: " if places.sequence else ""
            text = sub_operator_text(phase, dict(zip(grid, slices, strict=True)))
            raise IncompleteError(
                f"{method}expected {text} to be computed exactly once, "
                f"got it {len(computes)} times: {where}"
            )


def check_final(contents: Contents, blocks: Memories, hosts: Memories, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every block of `final` is on its device and finished.

    An output block of the grid that is not in `final` must be read by an instruction. Without
    `final` every output block must be finished in some memory, which may be that of a host.
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
            difference = contents.difference(name, blocks[rank][name])
            if difference:
                raise IncompleteError(f"{places.device(rank)}: at the end {difference}")
    _check_hosts(contents, hosts, places)
    if final is not None:
        _check_none_lost(contents, places)


def _check_hosts(contents: Contents, hosts: Memories, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` unless every block of `host_final` is on its host and finished."""
    for rank, names in enumerate(contents.program.host_final or ()):
        for name in names:
            if name not in hosts[rank]:
                raise IncompleteError(
                    f"{places.device(rank)}: expected {name} in its host memory at the end, got it "
                    "not there: evict it after its last use"
                )
            difference = contents.difference(name, hosts[rank][name])
            if difference:
                raise IncompleteError(
                    f"{places.device(rank)}: at the end in host memory {difference}"
                )


def _check_none_lost(contents: Contents, places: ErrorPlaces) -> None:
    """Raise `IncompleteError` for an output block of the grid that neither ends nor is used."""
    program = contents.program
    ends = (*(program.final or ()), *(program.host_final or ()))
    used = {name for names in ends for name in names}
    for node in chain.from_iterable(program.programs):
        match node:
            case Compute(reads=names) | Join(blocks=names):
                used.update(names)
            case Cut(block=name):
                used.add(name)
    places_of_ends = set(map(contents.meaning.place, used))
    for phase in contents.meaning.phases.values():
        for name in output_blocks(phase):
            if contents.meaning.place(name) not in places_of_ends:
                method = f"{places.sequence}: " if places.sequence else ""
                raise IncompleteError(
                    f"{method}expected {name} in final on some device, or read, got neither"
                )


def output_blocks(phase: Phase) -> list[str]:
    """Return the names of the blocks that a phase of the grid makes; none without a grid."""
    grid = phase.grid or {}
    dims = [dim for dim in grid if dim in phase.writes.dims]
    if phase.grid is None:
        return []
    ranges = [range(grid[dim]) for dim in dims]
    names = (phase.writes.block(dict(zip(dims, index, strict=True))) for index in product(*ranges))
    return list(dict.fromkeys(names))


def _check_somewhere(
    contents: Contents, name: str, memories: Memories, places: ErrorPlaces
) -> None:
    differences = [contents.difference(name, held[name]) for held in memories if name in held]
    if all(differences):
        method = f"{places.sequence}: " if places.sequence else ""
        raise IncompleteError(
            f"{method}at the end {differences[0]}"
            if differences
            else f"{method}expected {name} in some memory at the end, got it in none"
        )


def _holders(name: str, blocks: Memories) -> str:
    ranks = [str(rank) for rank, held in enumerate(blocks) if name in held]
    return f"on device{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else "on no device"
