"""Measures one problem under all contenders, in one world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
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
from benchmarks.executor.rounds import Timed, cpu_seconds, timed
from benchmarks.executor.traffic import StepTraffic, counted

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
    """What one world measured, by contender, and the CPU seconds of all ranks."""

    timed: list[Timed]
    peaks: dict[str, int]
    traffic: dict[str, StepTraffic]
    own: float


def measure(problem: Problem, plans: Planned, rounds: int, modules: bool) -> Measured:
    """Check, time and then count every contender; runs on every rank."""
    expected = None if dist.get_rank() else problem.expected()
    all_makers = makers(problem, plans, modules)
    contenders = {name: make() for name, make in all_makers.items()}
    for name, contender in contenders.items():
        if name not in FLOORS:
            check(contender, expected)
    times = timed(list(contenders.values()), rounds)
    traffic = {name: sent_by(contender) for name, contender in contenders.items()}
    contenders.clear()
    peaks = {name: peak_new_bytes(make) for name, make in all_makers.items()}
    return Measured(times, peaks, traffic, summed(cpu_seconds()))


def sent_by(contender: Contender) -> StepTraffic:
    """What a step sends: a program counts its messages, others are counted by torch."""
    if isinstance(contender, PartProgram | ModelProgram):
        executors = contender.executors()
        sent = sum(count * size for run in executors for _, count, size in run.sent)
        return StepTraffic(0, summed(float(sent)))
    return counted(contender)


def summed(value: float) -> float:
    """The sum over ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def makers(problem: Problem, plans: Planned, modules: bool) -> Makers:
    """Name -> how to make a contender; a collective call, as is each of them."""
    found: Makers = {name: partial(kind, problem) for name, kind in (FLOORS | OTHERS).items()}
    ours = ModelProgram if problem.kind == "gpt" else PartProgram
    for part in plans.parts:
        found[part.name] = partial(ours, problem, part)
        if modules and problem.kind == "mlp":
            found[f"{part.name} (modules)"] = partial(ModuleMlp, problem, part)
    return found
