"""What the ranks of the tests of conformance do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import torch
from linear_cases import mesh_of
from step_cases import BATCH, POSITIONS, SMALL, lowered

from primepar.distributed import Executor
from primepar.distributed.runtime.messages import CompiledStep
from primepar.errors import ConformanceError
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepSettings
from primepar.schedule.program import Instruction, Program
from primepar.schedule.program_file import instruction_text

RANKS = 4
Change = Callable[[list[CompiledStep], int], None]


def swapped(steps: list[CompiledStep], at: int) -> None:
    """Do an instruction after the next one."""
    steps[at : at + 2] = reversed(steps[at : at + 2])


def dropped(steps: list[CompiledStep], at: int) -> None:
    """Leave an instruction out."""
    del steps[at]


def doubled(steps: list[CompiledStep], at: int) -> None:
    """Do an instruction twice."""
    steps.insert(at, steps[at])


CHANGES: dict[str, Change] = {"swapped": swapped, "dropped": dropped, "doubled": doubled}


def executor_of(program: Program, family: str, proved: Program | None) -> Executor:
    """An executor of a step of a small model; a collective call."""
    settings = StepSettings(SMALL[family], BATCH, POSITIONS)
    return Executor(mesh_of("P2x2"), program, settings, proved=proved)


def blocks_of(executor: Executor) -> dict[str, torch.Tensor]:
    """Some numbers for the blocks that this rank starts with."""
    torch.manual_seed(0)
    found = {}
    for name in executor.initial:
        shape = executor.shapes.shape(name)
        numbers = name.startswith(("tokens", "targets"))
        found[name] = torch.randint(0, 20, shape) if numbers else torch.rand(shape).double()
    return found


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
    found = {}
    for name in names:
        program = lowered(name, RANKS, family)
        executor = executor_of(program, family, program)
        wrong = run(executor)
        assert executor.watch is not None
        sent = sum((elements for _, elements, _ in executor.sent), Fraction(0))
        found[name] = Numbers(wrong, executor.watch.peak, sent, executor.watch.instructions)
    return found


def changed(name: str, family: str, change: str, kind: str) -> tuple[int, list[str], str]:
    """Change the first instruction of a kind: its place, the texts of all, and what is said."""
    program = lowered(name, RANKS, family)
    executor = executor_of(program, family, program)
    at = next(place for place, node in enumerate(program.programs[0]) if tag(node) == kind)
    CHANGES[change](executor._steps, at)
    return at, [text(node) for node in program.programs[0]], run(executor) or ""


def another(name: str, other: str, family: str) -> str:
    """What is said of one plan's program where another's was proved."""
    programs = (lowered(each, RANKS, family) for each in (name, other))
    return run(executor_of(next(programs), family, next(programs))) or ""


def tag(node: Instruction) -> str:
    """The kind of an instruction."""
    return str(node.__struct_config__.tag)


def text(node: Instruction) -> str:
    """An instruction in one line."""
    return " ".join(instruction_text(node).split())
