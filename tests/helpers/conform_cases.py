"""What the ranks of the tests of conformance do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import torch
from linear_cases import mesh_of
from step_cases import BATCH, POSITIONS, SMALL, lowered

from primepar.distributed import Executor
from primepar.distributed.runtime.running import CompiledStep
from primepar.errors import ConformanceError
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepSettings
from primepar.schedule.program import Instruction, Program
from primepar.schedule.program_file import instruction_text

RANKS = 4
Change = Callable[[list[CompiledStep], int], None]


def swapped(steps: list[CompiledStep], position: int) -> None:
    """Do an instruction after the next one."""
    steps[position : position + 2] = reversed(steps[position : position + 2])


def dropped(steps: list[CompiledStep], position: int) -> None:
    """Leave an instruction out."""
    del steps[position]


def doubled(steps: list[CompiledStep], position: int) -> None:
    """Do an instruction twice."""
    steps.insert(position, steps[position])


CHANGES: dict[str, Change] = {"swapped": swapped, "dropped": dropped, "doubled": doubled}


def executor_of(
    program: Program, family: str, proved: Program | None, sequence: str = "P2x2"
) -> Executor:
    """An executor of a step of a small model; a collective call."""
    settings = StepSettings(SMALL[family], BATCH, POSITIONS)
    return Executor(mesh_of(sequence), program, settings, proved=proved)


def blocks_of(executor: Executor) -> dict[str, torch.Tensor]:
    """Some numbers for the blocks that this rank starts with."""
    torch.manual_seed(0)
    blocks = {}
    for name in executor.initial:
        shape = executor.shapes.shape(name)
        numbers = name.startswith(("tokens", "targets"))
        blocks[name] = torch.randint(0, 20, shape) if numbers else torch.rand(shape).double()
    return blocks


def run(executor: Executor) -> str | None:
    """Run it once; what is wrong, if anything is."""
    inputs = StepInputs(Draw(0, 1), 1e-3, 1)
    try:
        executor(blocks_of(executor), inputs)
    except ConformanceError as error:
        return str(error)
    return None


class Numbers(NamedTuple):
    """What a rank did in a step."""

    wrong: str | None
    peak: int
    """Elements of the memory of all blocks, each piece once, at most at once."""
    sent: Fraction
    instructions: int


def conforms(names: list[str], family: str) -> dict[str, Numbers]:
    """Plan -> what this rank did in a step of it."""
    numbers_by_name = {}
    for name in names:
        program = lowered(name, RANKS, family)
        executor = executor_of(program, family, program)
        wrong = run(executor)
        assert executor.watch is not None
        sent = sum((elements for _, elements, _ in executor.sent), Fraction(0))
        numbers_by_name[name] = Numbers(
            wrong, executor.watch.peak, sent, executor.watch.instructions
        )
    return numbers_by_name


def changed(name: str, family: str, change: str, kind: str) -> tuple[int, list[str], str]:
    """Change the first instruction of a kind: its position, all texts, and the error message."""
    program = lowered(name, RANKS, family)
    executor = executor_of(program, family, program)
    position = next(place for place, node in enumerate(program.programs[0]) if tag(node) == kind)
    CHANGES[change](executor.steps, position)
    return position, [text(node) for node in program.programs[0]], run(executor) or ""


def another(name: str, other: str, family: str) -> str:
    """The error message for one plan's program if that of another plan was proved."""
    programs = (lowered(plan_name, RANKS, family) for plan_name in (name, other))
    return run(executor_of(next(programs), family, next(programs))) or ""


def tag(node: Instruction) -> str:
    """The kind of an instruction."""
    return str(node.__struct_config__.tag)


def text(node: Instruction) -> str:
    """An instruction in one line."""
    return " ".join(instruction_text(node).split())
