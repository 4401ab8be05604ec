"""What tests of passes share: programs before and after, compared and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn_programs import drawn
from msgspec.structs import replace
from phase_programs import Json, built, compute
from phase_programs import program as program_of
from step_cases import lowered

from primepar.errors import EmulationError
from primepar.passes import PASSES, apply
from primepar.passes.liveness import peaks
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.reference.emulator.surrogate import PRIME
from primepar.schedule import Program
from primepar.schedule.program import Instruction
from primepar.verify import verify_program


class Ran(NamedTuple):
    """What `final` lists, by stand-ins in integers, and the elements that every rank sent."""

    ends: list[dict[str, list[int]]]
    sent: list[Fraction]


def ran(program: Program, given: Program) -> Ran:
    """A run from the memory that `given` starts with."""
    run = emulate(program, memories(given))
    ends = [
        {name: np.mod(held[name].array, PRIME).tolist() for name in names}
        for names, held in zip(program.final or (), run.blocks, strict=True)
    ]
    return Ran(ends, run.sent)


@cache
def drawn_and_ran(seed: int) -> tuple[Program, Ran]:
    """The program of a seed, and its run."""
    program = drawn(seed)
    return program, ran(program, program)


def refuted(made: Program) -> set[str]:
    """Properties that are refuted."""
    return {part.name for part in verify_program(made).properties if part.verdict == "refuted"}


def assert_same(old: Program, new: Program) -> None:
    """The same numbers end at the same places, and the same number of elements is sent."""
    assert verify_program(new).verdict == "proved"
    assert ran(new, old) == ran(old, old)
    assert (new.initial, new.final) == (old.initial, old.final)


def assert_refused(made: Program, given: Program, *properties: str) -> None:
    """What is made is refuted for one of some properties, and does not run."""
    assert refuted(made).intersection(properties)
    with pytest.raises(EmulationError):
        emulate(made, memories(given))


def raises_no_peak(old: Program, new: Program) -> bool:
    return all(map(int.__le__, peaks(new), peaks(old)))


@cache
def step(name: str, ranks: int, family: str, *without: str) -> Program:
    """The step of a small model after the passes, without some of them."""
    return apply(lowered(name, ranks, family), [name for name in PASSES if name not in without])


def count(made: Program, kind: Any, rank: int = 0) -> int:
    return sum(isinstance(node, kind) for node in made.programs[rank])


def changed(program: Program, change: Callable[[int, Instruction], Iterable[Any]]) -> Program:
    """The program with every instruction replaced by those that `change` returns."""
    lists = (
        tuple(new for node in nodes for new in change(rank, node))
        for rank, nodes in enumerate(program.programs)
    )
    return replace(program, programs=tuple(lists))


def local(nodes: list[Json], sizes: dict[str, int], **more: Any) -> Program:
    """One rank; tensors of one block each, `a` or `a[0]`, of these sizes."""
    tensors: Json = {name: {"cuts": [[0, size]]} for name, size in sizes.items()}
    return built(program_of([nodes], tensors={**tensors, **more.pop("tensors", {})}, **more))


def addition(reads: str, block: str) -> Json:
    return {
        "op": "compute",
        "reads": [f"{name}[0]" for name in reads.split()],
        "accumulates": f"{block}[0]",
    }


def free(block: str) -> Json:
    return {"op": "free", "block": f"{block}[0]"}


def reductions(
    between: list[Json], calls: dict[str, Json], *, names: str = "uv", sizes: str = "35"
) -> Program:
    """Two ranks add to the sums u and v of these sizes, reduce each, and then read all.

    `between` is what comes between the first sum and the others: `READ` reads the finished sum u.
    `calls` has fields of each call.
    """
    phases = {name: {"reads": ["a[M]"], "writes": f"{name}[0]"} for name in names}
    phases["y"] = {"reads": [f"{name}[0]" for name in names], "writes": "y[0]"}
    tensors: Json = {"a": {"cuts": [[0, 2, 4]]}, "y": {"cuts": [[0, 1]]}, "z": {"cuts": [[0, 1]]}}
    tensors |= {name: {"cuts": [[0, int(size)]]} for name, size in zip(names, sizes, strict=True)}
    grid = {name: {"M": 2} for name in names} | {"y": {"R": 2}}
    if READ in between:
        phases["z"], grid["z"] = {"reads": ["u[0]"], "writes": "z[0]"}, {"R": 2}
    lists: list[list[Json]] = []
    for rank in (0, 1):
        nodes: list[Json] = []
        for name in names:
            nodes.append(compute(name, [f"a[{rank}]"], f"{name}[0]", M=rank))
            nodes.append({"op": "all_reduce", "group": [0, 1], "block": f"{name}[0]",
                          **calls.get(name, {})})  # fmt: skip
            if name == names[0]:
                nodes += [
                    compute("z", ["u[0]"], "z[0]", R=rank) if node == READ else node
                    for node in between
                ]
        lists.append([*nodes, compute("y", [f"{name}[0]" for name in names], "y[0]", R=rank)])
    initial = [[f"a[{rank}]"] for rank in (0, 1)]
    final = [["y[0]", *["z[0]"] * (READ in between)]] * 2
    return built(program_of(lists, phases=phases, tensors=tensors, grid=grid, initial=initial,
                            final=final))  # fmt: skip


READ: Json = {"op": "read"}
