"""What must hold after the last instruction: the grid covered, every final block finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product

from primepar.errors import IncompleteError
from primepar.reference.block import Block, Datum, SubOperator, Term, home_of
from primepar.reference.places import Places
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import PRODUCTS, Index, Phase, parse_block, tensor_dims
from primepar.schedule.program import Compute, Cut, Join, Program

Computed = dict[SubOperator, list[tuple[int, int]]]
"""Sub-operator -> (rank, place in its program) of every compute of it."""


def grid_terms(program: Program, phase: Phase) -> list[SubOperator]:
    """Every sub-operator of a phase of the program's grid."""
    grid = (program.grid or {})[phase]
    ranges = [range(count) for count in grid.values()]
    return [
        SubOperator.of(phase, dict(zip(grid, index, strict=True))) for index in product(*ranges)
    ]


def block_terms(program: Program, phase: Phase, index: Index) -> set[Term]:
    """Every sub-operator of a phase's grid that is summed into one block of its output."""
    grid = (program.grid or {})[phase]
    own = [dim for dim in tensor_dims(PRODUCTS[phase].writes) if dim in grid]
    if len(own) != len(index) or any(i >= grid[dim] for dim, i in zip(own, index, strict=True)):
        return set()
    place = dict(zip(own, index, strict=True))
    ranges = [(place[dim],) if dim in place else range(count) for dim, count in grid.items()]
    return {SubOperator.of(phase, dict(zip(grid, at, strict=True))) for at in product(*ranges)}


def check_coverage(program: Program, computed: Computed, places: Places) -> None:
    """Raise `IncompleteError` unless every sub-operator of the grid was computed exactly once."""
    for phase in program.grid or {}:
        for term in grid_terms(program, phase):
            at = computed.get(term, [])
            if len(at) == 1:
                continue
            where = ", ".join(f"programs[{rank}][{place}]" for rank, place in at) or "nowhere"
            method = f"{places.sequence}: " if places.sequence else ""
            raise IncompleteError(
                f"{method}expected {term} to be computed exactly once, "
                f"got it {len(at)} times: {where}"
            )


def check_final(
    program: Program,
    blocks: Sequence[Mapping[str, Block]],
    hosts: Sequence[Mapping[str, Block]],
    places: Places,
) -> None:
    """Raise `IncompleteError` unless every block of `final` is in its place and finished.

    An output block of the grid that is not in `final` must be read by an instruction. Without
    `final` every one must be finished anywhere, a host included.
    """
    if program.final is None:
        for phase in program.grid or {}:
            for name in dict.fromkeys(term.home for term in grid_terms(program, phase)):
                _check_somewhere(program, name, [*blocks, *hosts], places)
    for rank, names in enumerate(program.final or ()):
        for name in names:
            if name not in blocks[rank]:
                raise IncompleteError(
                    f"{places.device(rank)}: expected {name} in its memory at the end, "
                    f"got it {_holders(name, blocks)}"
                )
            wanting = _wanting(program, name, blocks[rank][name])
            if wanting:
                raise IncompleteError(f"{places.device(rank)}: at the end {wanting}")
    if program.final is not None:
        _check_none_lost(program, places)


def _check_none_lost(program: Program, places: Places) -> None:
    """Raise `IncompleteError` for an output block of the grid that neither ends nor is used."""
    meaning, used = Meaning(program), {name for names in program.final or () for name in names}
    for node in chain.from_iterable(program.programs):
        match node:
            case Compute(reads=names) | Join(blocks=names):
                used.update(names)
            case Cut(block=name):
                used.add(name)
    ends = set(map(meaning.place, used))
    for phase in program.grid or {}:
        for name in dict.fromkeys(term.home for term in grid_terms(program, phase)):
            if meaning.place(name) not in ends:
                method = f"{places.sequence}: " if places.sequence else ""
                raise IncompleteError(
                    f"{method}expected {name} in final on some device, or read, got neither"
                )


def _check_somewhere(
    program: Program, name: str, memories: Sequence[Mapping[str, Block]], places: Places
) -> None:
    wanting = [_wanting(program, name, held[name]) for held in memories if name in held]
    if all(wanting):
        method = f"{places.sequence}: " if places.sequence else ""
        raise IncompleteError(
            f"{method}at the end {wanting[0]}"
            if wanting
            else f"{method}expected {name} in some memory at the end, got it in none"
        )


def _holders(name: str, blocks: Sequence[Mapping[str, Block]]) -> str:
    ranks = [str(rank) for rank, held in enumerate(blocks) if name in held]
    return f"on device{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else "on no device"


def is_finished(program: Program, name: str, block: Block) -> bool:
    """Whether a block is the datum of its name, or the sum of all products of it."""
    return not _wanting(program, name, block)


def _wanting(program: Program, name: str, block: Block) -> str:
    """What is wrong with a block that should be finished; nothing if its name means nothing."""
    home, parsed = home_of(name), parse_block(name)
    if home is None or parsed is None or parsed.scratch:
        return ""
    phase = next((p for p, made in PRODUCTS.items() if made.writes == parsed.tensor), None)
    if phase is None or phase not in (program.grid or {}):
        finished = block.is_datum(home) if phase is None else block.homes == {home}
        return "" if finished else f"expected {name}, got {block} under that name"
    whole = block_terms(program, phase, parsed.index)
    missing = sorted(map(str, whole - block.terms))
    if missing:
        return f"expected the {len(whole)} terms of {name}, got it without {missing[0]}"
    strange = sorted(map(str, block.terms - whole - {Datum(home)}))
    return f"expected the {len(whole)} terms of {name}, got also {strange[0]}" if strange else ""
