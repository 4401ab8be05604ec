"""Measures one problem under all contenders, in one world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct
from torch import distributed as dist

from benchmarks.executor.contender import Contender, check
from benchmarks.executor.dtensor_contender import DTensorContender, SequenceDTensorContender
from benchmarks.executor.memory import peak_new_bytes
from benchmarks.executor.model_program import ModelProgram
from benchmarks.executor.module_contender import (
    ColumnFloor,
    MegatronContender,
    RowFloor,
    SequenceMegatronContender,
)
from benchmarks.executor.module_mlp import ModuleMlp
from benchmarks.executor.part_program import PartProgram
from benchmarks.executor.planned import Planned
from benchmarks.executor.problem import Problem
from benchmarks.executor.rounds import Timed, timed

Makers = dict[str, Callable[[], Contender]]
FLOORS = {kind.name: kind for kind in (ColumnFloor, RowFloor)}
OTHERS = {
    kind.name: kind
    for kind in (
        DTensorContender,
        SequenceDTensorContender,
        MegatronContender,
        SequenceMegatronContender,
    )
}


class Measured(Struct, frozen=True):
    """What one world measured: times, and peaks of new memory in bytes by name."""

    timed: list[Timed]
    peaks: dict[str, int]


def measure(problem: Problem, plans: Planned, rounds: int, modules: bool) -> Measured:
    """Check, time and then record the memory of every contender; runs on every rank."""
    expected = None if dist.get_rank() else problem.expected()
    all_makers = makers(problem, plans, modules)
    contenders = {name: make() for name, make in all_makers.items()}
    for name, contender in contenders.items():
        if name not in FLOORS:
            check(contender, expected)
    times = timed(list(contenders.values()), rounds)
    contenders.clear()
    peaks = {name: peak_new_bytes(make) for name, make in all_makers.items()}
    return Measured(times, peaks)


def makers(problem: Problem, plans: Planned, modules: bool) -> Makers:
    """Name -> how to make a contender; a collective call, as is each of them."""
    found: Makers = {name: partial(kind, problem) for name, kind in (FLOORS | OTHERS).items()}
    ours = ModelProgram if problem.kind == "gpt" else PartProgram
    for part in plans.parts:
        found[part.name] = partial(ours, problem, part)
        if modules and problem.kind == "mlp":
            found[f"{part.name} (modules)"] = partial(ModuleMlp, problem, part)
    return found
