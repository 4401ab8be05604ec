"""Mutants, each judged by the explorer, by the emulator where it applies, and by the proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from random import Random
from time import perf_counter

import msgspec
from agreement import disagreement, refuted
from family import member
from mutation import Json
from mutation_local import WAYS
from mutation_maps import MAP_WAYS
from phased import everything

from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES
from primepar.reference.check import check_program
from primepar.schedule import Primitive, Program, Sequence, lower
from primepar.schedule.sequence import Element
from primepar.verify.explorer import explore
from primepar.verify.primitive_proof import verify_primitive
from primepar.verify.program_proof import verify_program

STEPS = {"step in rows": 1, "step in blocks": 2}
"""Programs with phases of their own -> their seed."""
BASES = {
    **dict.fromkeys(PRIMITIVES, ((2,), (3,))),
    **{name: ((2,),) for name in PRIMITIVES if name.startswith("three")},
    "summa-rectangular": ((2, 1, 1), (1, 2, 2)),
    "tesseract": ((2, 2), (1, 3)),
}
"""The meshes whose programs are changed."""
LARGEST = 27
"""Devices of the largest mesh on which a primitive is explored."""


@dataclass(frozen=True)
class Task:
    """One mutant: `number` counts those, `most` of them at most, of one way and method."""

    method: str
    way: str
    most: int
    number: int


@dataclass(frozen=True)
class Judged:
    """What was found of one mutant."""

    task: Task
    where: str
    digest: int
    """Equal for equal mutants."""
    failed: frozenset[str]
    """Properties that fail in the explorer; none for a mutant that does no harm."""
    verdict: str
    """Of the proofs."""
    refuted: frozenset[str]
    split: str
    """Where explorer and emulator, or explorer and proofs, differ in what is wrong."""
    seconds: float
    """Of the proofs."""

    @property
    def harmful(self) -> bool:
        """Whether it is wrong at all."""
        return bool(self.failed)


@cache
def base(method: str) -> list[Json]:
    """The programs that are changed, as JSON."""
    if method in STEPS:
        return [everything(Random(STEPS[method]))]
    programs = [lower(member(method, sides)) for sides in BASES[method]]
    return [msgspec.to_builtins(program) for program in programs]


@cache
def changes(method: str, way: str, most: int) -> list[tuple[str, Program]]:
    """So many different programs at most that one way makes of a method's, always the same ones."""
    made = [
        (where, fields, programs)
        for fields in base(method)
        for where, programs in WAYS[way](fields)
    ]
    Random(f"{method} {way}").shuffle(made)
    found: dict[bytes, tuple[str, Program]] = {}
    for where, fields, programs in made:
        if len(found) == most:
            break
        try:
            program = msgspec.convert({**fields, "programs": programs}, Program)
        except msgspec.ValidationError:
            continue
        found.setdefault(msgspec.json.encode(program), (where, program))
    return list(found.values())


@cache
def map_changes(method: str, way: str, most: int) -> list[tuple[str, Primitive]]:
    """So many primitives at most that one way makes of a method."""
    made = list(MAP_WAYS[way](PRIMITIVES[method]())) if method in PRIMITIVES else []
    Random(f"{method} {way}").shuffle(made)
    return made[:most]


def tasks(most: int) -> list[Task]:
    """At most so many mutants of each way and method."""
    programs = [
        Task(method, way, most, number)
        for method, way in product((*PRIMITIVES, *STEPS), WAYS)
        for number in range(len(changes(method, way, most)))
    ]
    maps = [
        Task(method, way, most, number)
        for method, way in product(PRIMITIVES, MAP_WAYS)
        for number in range(len(map_changes(method, way, most)))
    ]
    return programs + maps


def judge(task: Task) -> Judged:
    """Judge one mutant."""
    if task.way in MAP_WAYS:
        return _judge_primitive(task, *map_changes(task.method, task.way, task.most)[task.number])
    return judge_program(task, *changes(task.method, task.way, task.most)[task.number])


def judge_program(task: Task, where: str, program: Program) -> Judged:
    """Judge a changed program."""
    seen, start = explore(program), perf_counter()
    report = verify_program(program)
    seconds = perf_counter() - start
    split = disagreement(report, seen)
    if not split and task.method in PRIMITIVES and _emulates(program) == bool(seen.failed):
        split = "emulator"
    digest = hash(msgspec.json.encode(program))
    return Judged(
        task, where, digest, seen.failed, report.verdict, frozenset(refuted(report)), split, seconds
    )


def _emulates(program: Program) -> bool:
    try:
        return check_program(program).equal
    except PrimeParError:
        return False


def meshes(primitive: Primitive) -> Iterator[tuple[int, ...]]:
    """Sides up to 5 on few devices."""
    for sides in product(range(1, 6), repeat=len(primitive.side_names)):
        if prod(Element(primitive, sides).axis_lengths) <= LARGEST:
            yield sides


def _judge_primitive(task: Task, where: str, primitive: Primitive) -> Judged:
    """Judge a changed primitive: on small meshes by the explorer, on all by the proofs."""
    failed, maps = set[str](), []
    for sides in meshes(primitive):
        program = lower(Sequence.of(primitive, *sides))
        maps.append(msgspec.json.encode(program))
        failed = set(explore(program).failed)
        if failed:
            break
    start = perf_counter()
    report = verify_primitive(primitive)
    seconds = perf_counter() - start
    return Judged(
        task, where, hash(tuple(maps)), frozenset(failed), report.verdict,
        frozenset(refuted(report)), "", seconds,
    )  # fmt: skip
