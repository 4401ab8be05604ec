"""Training steps as programs, what they send, and how to spoil them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import msgspec
from lowered_steps import lower_step
from partitioned_cases import SHAPES

from primepar.operators.step_options import DEFAULT, StepOptions
from primepar.passes.block_uses import Rank, RankList
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.work import Work
from primepar.schedule import Program
from primepar.schedule.effects import effects
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import AllReduce, Collective, Free, Instruction, IRecv, ISend
from primepar.schedule.program_file import instruction_text
from primepar.verify import verify_program

BATCH, POSITIONS = 8, 4
SMALL = {family: replace(config, layers=1) for family, config in SHAPES.items()}
"""One layer of every family."""


class Call(NamedTuple):
    """A message or a collective of one rank, without the names of its blocks."""

    kind: str
    with_ranks: tuple[int, ...]
    how: tuple[object, ...]
    """Root and reduction, where it has them."""
    elements: int


def calls(program: Program, elements: Callable[[str], int]) -> Iterator[tuple[int, Call]]:
    """What every rank sends, receives and reduces, in order; `elements` are those of a block."""
    for rank, instructions in enumerate(program.programs):
        for node in instructions:
            if isinstance(node, ISend | IRecv):
                yield rank, Call(type(node).__name__, (node.peer,), (), elements(node.block))
            elif isinstance(node, Collective):
                how = tuple(getattr(node, field, None) for field in ("root", "reduction"))
                given = effects(node, rank).reads or effects(node, rank).writes
                if not isinstance(node, AllReduce):
                    given = given[:1]
                size = sum(map(elements, given))
                yield rank, Call(type(node).__name__, node.group, how, size)


def as_planned(plan: Plan, batch: int, positions: int, options: StepOptions = DEFAULT) -> Program:
    """The step as the planner counts it: before the passes, each block freed after its last use.

    What operators free within them stays where they free it.
    """
    program = lower_step(plan, batch, positions, options=options, passes=())
    ends = zip(program.programs, program.final or (), strict=True)
    lists = tuple(tuple(_freed(rank, *arguments)) for rank, arguments in enumerate(ends))
    return msgspec.structs.replace(program, programs=lists)


def _freed(rank: int, nodes: Sequence[Instruction], kept: Iterable[str]) -> Iterator[Instruction]:
    line = RankList(nodes, Rank(rank))
    for place, (node, used) in enumerate(zip(nodes, line.uses, strict=True)):
        yield node
        ends = [name for name in used.names if line.touches[name][-1] == place and name not in kept]
        yield from map(Free, () if isinstance(node, Free) else ends)


@cache
def lowered(name: str, ranks: int, family: str) -> Program:
    """The step of a small model under a preset plan, before the passes."""
    return as_planned(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)


@cache
def passed(name: str, ranks: int, family: str) -> Program:
    """The step of a small model under a preset plan, after all passes."""
    return lower_step(preset_plan(name, SMALL[family], ranks), BATCH, POSITIONS)


@cache
def recomputed() -> Program:
    """A step of two devices whose layer is computed again."""
    plan = preset_plan("megatron", SMALL["llama"], 2)
    again = msgspec.structs.replace(plan, recompute="full")
    return lower_step(again, 1, 2, passes=["free-early"])


@cache
def sharded() -> Program:
    """A step of two devices whose optimizer is in shards."""
    plan = preset_plan("data", SMALL["llama"], 2)
    shards = msgspec.structs.replace(plan, sharded_optimizer=True)
    return lower_step(shards, 2, 2, passes=["free-early"])


def by_rank(rank_calls: Iterable[tuple[int, Call]], ranks: int) -> list[list[Call]]:
    """The calls of every rank."""
    lists: list[list[Call]] = [[] for _ in range(ranks)]
    for rank, call in rank_calls:
        lists[rank].append(call)
    return lists


def calls_of_step(program: Program) -> list[list[Call]]:
    """The calls of every rank in the program of a step."""
    meaning = Meaning(program)

    def elements(block: str) -> int:
        count = meaning.elements(block)
        assert count is not None, block
        return count

    return by_rank(calls(program, elements), program.ranks)


def _sent(call: Call, rank: int) -> Fraction:
    """Elements that leave a rank: rings, and chains from and to a root."""
    size, group = call.elements, call.with_ranks
    others = len(group) - 1
    match call.kind:
        case "ISend":
            return Fraction(size)
        case "AllReduce":
            return Fraction(2 * others * size, len(group))
        case "AllGather" | "ReduceScatter":
            return Fraction(others * size)
        case "Broadcast" | "Reduce":
            root = call.how[0]
            last = (group.index(rank) - group.index(int(str(root)))) % len(group) == others
            ends = last if call.kind == "Broadcast" else rank == root
            return Fraction(0 if ends else size)
        case _:
            return Fraction(0)


def sent_by(everyone: list[list[Call]]) -> list[Fraction]:
    """Elements that leave every rank."""
    return [
        sum((_sent(call, rank) for call in calls), Fraction(0))
        for rank, calls in enumerate(everyone)
    ]


def held_by(program: Program) -> list[int]:
    """Most elements that are there at once on every rank, as the simulator counts them."""
    return [held // 4 for held in bytes_held_by(program, "float32")]


def bytes_held_by(program: Program, dtype: str) -> list[int]:
    """Most bytes that are there at once on every rank, as the simulator counts them."""
    work = Work(program, load_cluster("h200-8"), dtype, float)
    return [work.peak(rank) for rank in range(program.ranks)]


def spoilt(program: Program, spoil: Callable[[int, list[Instruction]], None]) -> Program:
    """The program with the list of each rank changed, in place or by what `spoil` returns."""
    lists = [list(instructions) for instructions in program.programs]
    for rank, nodes in enumerate(lists):
        spoil(rank, nodes)
    return msgspec.structs.replace(program, programs=tuple(map(tuple, lists)))


def place(instructions: list[Instruction], text: str) -> int:
    """The position of the only instruction whose text, with single spaces, begins like `text`."""
    texts = [" ".join(instruction_text(node).split()) for node in instructions]
    (only,) = [position for position, line in enumerate(texts) if line.startswith(text)]
    return only


def refuted(program: Program) -> dict[str, str]:
    """Property -> counterexample, of those that are refuted."""
    return {
        result.name: result.counterexample
        for result in verify_program(program).properties
        if result.counterexample is not None
    }
