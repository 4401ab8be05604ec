"""Blocks that a program names, against the tensors that it cuts."""

from __future__ import annotations

from collections.abc import Iterator

from primepar.errors import ProgramError
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import BLOCK_LISTS, Compute, Group, Instruction, Program

_FIELDS = ("block", "accumulates")
_LISTS = ("reads", "blocks", "into", "also")


def check_blocks(program: Program) -> None:
    """Raise `ProgramError` if a name, or a sub-operator, is of a block outside its tensor's cuts.

    Programs without `tensors` have nothing to be checked against.
    """
    if not program.tensors:
        return
    meaning = Meaning(program)
    for name in BLOCK_LISTS:
        for rank, blocks in enumerate(getattr(program, name) or ()):
            _place(meaning, blocks, f"{name}[{rank}]")
    for phase, grid in (program.grid or {}).items():
        last = {dim: slices - 1 for dim, slices in grid.items()}
        _sub_operator(meaning, phase, last, f"phases.{phase} at the end of its grid")
    for rank, instructions in enumerate(program.programs):
        for index, node in enumerate(instructions):
            where = f"programs[{rank}][{index}]"
            _place(meaning, _named(node), where)
            if isinstance(node, Compute) and node.phase is not None:
                _sub_operator(meaning, node.phase, node.sub_operator or {}, where)


def _named(node: Instruction) -> Iterator[str]:
    if isinstance(node, Group):
        yield from (message.block for message in node.body)
        return
    yield from (getattr(node, field) for field in _FIELDS if hasattr(node, field))
    for field in _LISTS:
        yield from getattr(node, field, ())


def _sub_operator(meaning: Meaning, phase: str, slices: dict[str, int], where: str) -> None:
    known = meaning.phases[phase]
    _place(meaning, (template.block(slices) for template in (*known.reads, known.writes)), where)


def _place(meaning: Meaning, blocks: Iterator[str] | tuple[str, ...], where: str) -> None:
    for block in blocks:
        try:
            meaning.place(block.rstrip("'"))
        except ProgramError as error:
            raise ProgramError(f"{error} in {where}: cut it finer, or name another") from None
