"""Do emulated devices compute what one device computes? Integers in float64, compared with ==."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from zlib import crc32

import numpy as np
from msgspec import Struct

from primepar.errors import EmulationError
from primepar.reference.block import Array, home_of
from primepar.reference.blocks import (
    Memory,
    cut,
    grid_of,
    host_blocks,
    initial_blocks,
    outputs_of,
)
from primepar.reference.dense import linear_step
from primepar.reference.executor import Emulation, emulate
from primepar.reference.final import is_finished
from primepar.schedule.lowering import lower
from primepar.schedule.operators import Dim, Index, Linear, block_name, parse_block, tensor_dims
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence

Number = int | float


class CheckReport(Struct, frozen=True):
    """How a run on emulated devices compares with one device."""

    target: str
    equal: bool
    """Whether the run ended well, every output is equal, and so is what was sent if known."""
    ranks: int
    shape: dict[str, int]
    """Elements along each dim of the operator; empty where the program has no grid."""
    outputs: dict[str, bool] = {}
    """Tensor -> whether all of its blocks are those of the dense tensor."""
    sent: tuple[Number, ...] = ()
    """Elements that left each rank."""
    formula: Number | None = None
    """Elements that should leave each rank by the primitive's own formula, if it has one."""
    peak: tuple[int, ...] = ()
    """Most elements alive at once on each rank."""
    message: str | None = None
    """What is wrong, if anything is."""


@dataclass(frozen=True)
class _Case:
    """A program with the shape of its operator and the dense tensors that go in and come out."""

    program: Program
    shape: dict[Dim, int]
    grid: dict[Dim, int]
    given: dict[str, Array]
    expected: dict[str, Array]


def check(sequence: Sequence, operator: Linear | None = None, seed: int = 0) -> CheckReport:
    """Run one training step of a linear operator on emulated devices and on one.

    Without an operator every slice has two elements. Raises `ShapeError` if the sequence's grid
    does not divide the operator's shape.
    """
    operator = operator or Linear.smallest(sequence.grid)
    program = lower(sequence, operator)
    return _report(str(sequence), program, sequence, seed, formula(sequence, operator))


def check_program(program: Program, target: str = "program", seed: int = 0) -> CheckReport:
    """Run a program on emulated devices, and compare what its grid computes with one device.

    Blocks are random integers, two elements for each slice if the program has no shape. Without a
    grid they are vectors of two, there is nothing to compare, and the run itself is the check.
    Raises `ShapeError` or `ProgramError` if grid and shape do not fit.
    """
    return _report(target, program, None, seed, None)


def formula(sequence: Sequence, operator: Linear) -> Fraction | None:
    """Elements that leave each device in one training step, for a sequence of one primitive."""
    if len(sequence.elements) != 1:
        return None
    (element,) = sequence.elements
    return element.sent(operator)


def _report(
    target: str,
    program: Program,
    sequence: Sequence | None,
    seed: int,
    expected_sent: Fraction | None,
) -> CheckReport:
    case = _case(program, np.random.default_rng(seed))
    shape = {str(dim): size for dim, size in case.shape.items()}
    try:
        run = emulate(program, _memories(case, seed), sequence)
    except EmulationError as error:
        return CheckReport(target, False, program.ranks, shape, message=str(error))
    found = {tensor: list(_differences(case, tensor, run)) for tensor in case.expected}
    wrong = [text for texts in found.values() for text in texts] + _traffic(run, expected_sent)
    return CheckReport(
        target,
        not wrong,
        program.ranks,
        shape,
        {tensor: not texts for tensor, texts in found.items()},
        tuple(map(_number, run.sent)),
        None if expected_sent is None else _number(expected_sent),
        tuple(run.peak),
        wrong[0] if wrong else None,
    )


def _case(program: Program, rng: np.random.Generator) -> _Case:
    """Dense integer inputs and the outputs that one device makes of them."""
    grid = grid_of(program)
    if not grid:
        return _Case(program, {}, {}, {}, {})
    told = program.shape or {}
    sizes: dict[Dim, int] = {dim: told.get(dim, 2 * count) for dim, count in grid.items()}
    operator = Linear(**{"M": 2, "N": 2, "K": 2, **told, **sizes})
    operator.check_divides(grid)
    given = {
        tensor: rng.integers(-4, 5, _dense_shape(operator, tensor, grid)).astype(np.float64)
        for tensor in ("I", "W", "dO")
    }
    step = linear_step(given["I"], given["W"], given["dO"])._asdict()
    expected = {tensor: step[tensor] for tensor in outputs_of(program)}
    return _Case(program, sizes, grid, given, expected)


def _dense_shape(operator: Linear, tensor: str, grid: Mapping[Dim, int]) -> list[int]:
    dims = [dim for dim in tensor_dims(tensor) if dim in grid or dim != "B"]
    return [operator.size(dim) for dim in dims]


def _memories(case: _Case, seed: int) -> list[Memory]:
    names = zip(initial_blocks(case.program), host_blocks(case.program), strict=True)
    return [
        {name: _array(case, name, rank, seed) for name in (*own, *host)}
        for rank, (own, host) in enumerate(names)
    ]


def _array(case: _Case, name: str, rank: int, seed: int) -> Array:
    """Array of an initial block: cut from its dense tensor, else random, equal on all replicas.

    What an output block held before is zeros, so that what the program adds can be compared.
    """
    parsed, home = parse_block(name), home_of(name)
    if parsed is not None and _inside(case.grid, parsed.tensor, parsed.index):
        before = {tensor: np.zeros_like(dense) for tensor, dense in case.expected.items()}
        dense = {**case.given, **before}.get(parsed.tensor)
        if dense is not None:
            return cut(dense, parsed.tensor, parsed.index, case.grid)
    rng = np.random.default_rng([seed, crc32((home or f"{name} {rank}").encode())])
    return rng.integers(-4, 5, 2).astype(np.float64)


def _inside(grid: Mapping[Dim, int], tensor: str, index: Index) -> bool:
    slices = [grid[dim] for dim in tensor_dims(tensor) if dim in grid]
    return len(index) == len(slices) and all(i < n for i, n in zip(index, slices, strict=True))


def _differences(case: _Case, tensor: str, run: Emulation) -> Iterator[str]:
    """What is wrong with each block of an output: finished nowhere, or not the dense one."""
    dense = case.expected[tensor]
    slices = [case.grid[dim] for dim in tensor_dims(tensor) if dim in case.grid]
    for index in np.ndindex(*slices):
        name = block_name(tensor, index)
        finished = [
            (rank, held[name])
            for memories in (run.blocks, run.hosts)
            for rank, held in enumerate(memories)
            if name in held and is_finished(case.program, name, held[name])
        ]
        if not finished:
            yield f"expected a finished {name} in some memory at the end, got it in none"
        for rank, block in finished:
            if not np.array_equal(block.array, cut(dense, tensor, index, case.grid)):
                yield f"expected {name} as one device computes it, got another on device {rank}"


def _traffic(run: Emulation, expected: Fraction | None) -> list[str]:
    if expected is None:
        return []
    return [
        f"expected {expected} elements to leave each device, got {count} from device {rank}"
        for rank, count in enumerate(run.sent)
        if count != expected
    ]


def _number(count: Fraction) -> Number:
    return count.numerator if count.denominator == 1 else float(count)
