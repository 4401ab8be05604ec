"""Compares a run on emulated devices with one device; integers in float64, compared with ==.

Every block that is finished at some time, and that the program makes, is compared with its window
of the tensor that one device computes. Example: with grid M=2, N=2, K=1 the finished O[1,0] of
device 3 is compared with the lower half of O = I W. What is never finished is missing.

Only a plan needs the dense transformer and its kernels, which `check_plan` loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from fractions import Fraction
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from primepar.errors import EmulationError
from primepar.reference.emulator.contents import Array, Contents
from primepar.reference.emulator.executor import Finished, emulate
from primepar.reference.emulator.surrogate import LENGTH, PRIME
from primepar.reference.emulator.tensors import Memory
from primepar.reference.oracle.one_device import OneDevice, one_device, random_integers
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.lower_bound import starts_replicated, training_step
from primepar.schedule.lowering import lower
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence

if TYPE_CHECKING:
    from primepar.plan.plan import Plan

Number = int | float
CLOSE = 1e-10
"""Largest relative difference of a step on real numbers, as devices sum in another order."""

LISTED = 12
"""Tensors that a report lists one by one; of more only those that differ are."""


class CheckReport(Struct, frozen=True):
    """Result of a comparison of emulated devices with one device."""

    target: str
    equal: bool
    """Whether the run had no error, and all outputs and the sent elements (if known) are equal."""
    ranks: int
    shape: dict[str, int]
    """Elements along each dim of the operator; empty if the program has no grid."""
    outputs: dict[str, bool] = {}
    """Tensor -> whether all its blocks equal those of the dense tensor."""
    sent: tuple[Number, ...] = ()
    """Elements that each rank sent."""
    formula: Number | None = None
    """Elements that each rank should send by the primitive's formula, if it has one."""
    peak: tuple[int, ...] = ()
    """Largest number of live elements on each rank."""
    message: str | None = None
    """The first error, None if there is none."""
    stand_ins: bool = False
    """Whether phases were computed by stand-ins, as in programs with signatures."""
    difference: float | None = None
    """For a plan's step on real numbers: largest difference of loss and gradients from dense."""
    lower_bound: float | None = None
    """Elements that no schedule of a linear operator sends less than, holding as little.

    A mean over the ranks. None where a tensor starts replicated, and of what is no training step of
    a linear operator.
    """
    ratio: float | None = None
    """What is sent over the lower bound, unless that is 0."""
    starts_replicated: tuple[str, ...] = ()
    """Operands of which there is more than one copy at the start."""

    def lines(self, paint: Callable[[str, bool], str] = lambda text, good: text) -> Iterator[str]:
        """The report as text; `paint` colours a verdict by whether it is good."""
        sizes = " ".join(f"{dim}={size}" for dim, size in self.shape.items())
        devices = f"{self.ranks} emulated device{'s' * (self.ranks != 1)}"
        yield f"{self.target or 'all'} on {devices}{', ' * bool(sizes)}{sizes}"
        listed = self.outputs
        if len(listed) > LISTED:
            listed = {tensor: equal for tensor, equal in listed.items() if not equal}
            equal_ones = len(self.outputs) - len(listed)
            yield f"  {equal_ones} tensors {paint('equal', True)}"
        width = max([4, *map(len, listed)])
        for tensor, equal in listed.items():
            yield f"  {tensor:{width}} {paint('equal' if equal else 'differs', equal)}"
        if self.sent:
            by_formula = "" if self.formula is None else f", {self.formula:g} by the formula"
            yield f"  sent per device  {_range(self.sent)} elements{by_formula}"
            yield f"  peak per device  {_range(self.peak)} elements"
        if self.lower_bound is not None:
            times = "" if self.ratio is None else f", sent is {self.ratio:.2f} times that"
            yield f"  lower bound      {self.lower_bound:.6g} elements{times}"
        elif self.starts_replicated:
            names, plural = ", ".join(self.starts_replicated), len(self.starts_replicated) > 1
            yield f"  lower bound      none: {names} start{'' if plural else 's'} replicated"
        if self.stand_ins and self.equal:
            yield (
                "  by surrogates of what the phases compute: data is where it belongs, summed once"
            )
        if self.difference is not None and self.equal:
            yield "  by kernels on real numbers: loss and gradients within 1e-10 of the dense ones"
        if self.message:
            yield f"  {paint('refused', False)}  {self.message}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def check(sequence: Sequence, operator: Linear | None = None, seed: int = 0) -> CheckReport:
    """Run one training step of a linear operator on emulated devices and on one.

    Without an operator every slice has two elements. Raises `ShapeError` if the sequence's grid
    does not divide the operator's shape.
    """
    operator = operator or Linear.smallest(sequence.grid)
    program = lower(sequence, operator)
    report = _report(str(sequence), program, sequence, seed, formula(sequence, operator))
    if not report.equal:
        return report
    if replicated := starts_replicated(Movement(sequence)):
        return replace(report, starts_replicated=replicated)
    rows = operator.B * operator.M
    shape, memory = (rows, operator.N, operator.K), float(max(report.peak))
    bound = training_step(*shape, sequence.ranks, memory=memory)
    mean = float(sum(report.sent)) / sequence.ranks
    return replace(report, lower_bound=bound, ratio=mean / bound if bound else None)


def check_program(program: Program, target: str = "program", seed: int = 0) -> CheckReport:
    """Run a program on emulated devices, and compare what its grid computes with one device.

    Blocks are random integers, two elements for each slice if the program has no shape. Without a
    grid there is nothing to compare, and the run itself is the check. In a program with signatures
    every phase has a stand-in, see `primepar.reference.emulator.surrogate`, with numbers modulo a
    prime. Then equal means that data was moved, reduced and placed correctly; it states nothing
    about the functions.
    Every tensor that the program makes is compared: its finished blocks when a phase reads them,
    when they are freed, and at the end. Raises `ShapeError` or `ProgramError` if grids, shape and
    cuts do not fit.
    """
    return _report(target, program, None, seed, None)


def check_plan(
    plan: Plan, batch: int, positions: int, target: str = "plan", seed: int = 0
) -> CheckReport:
    """Run a training step of a plan twice: like `check_program`, and on real numbers.

    The second run compares loss and all gradients with those of the dense transformer, with
    dropout. Raises `PlanError` for a batch that the plan does not divide.
    """
    from primepar.operators import lower_step
    from primepar.reference.emulator.model import step_difference

    report = check_program(lower_step(plan, batch, positions), target, seed)
    if report.message is not None:
        return report
    difference, name = step_difference(plan, batch, positions, seed)
    message = None if difference <= CLOSE else (
        f"expected {name} within {CLOSE:g} of the dense transformer's, got {difference:.1e} off"
    )  # fmt: skip
    return replace(report, difference=difference, message=message, equal=message is None)


def memories(program: Program, seed: int = 0) -> list[Memory]:
    """Return the memories of `check_program`: an array for every initial block of every rank.

    Raises `ShapeError` or `ProgramError` if grids, shape and cuts do not fit.
    """
    contents = Contents(program)
    return _memories(contents, one_device(contents, np.random.default_rng(seed)), seed)


def formula(sequence: Sequence, operator: Linear) -> Fraction | None:
    """Return the elements that each device sends in one training step by the primitive's formula.

    None for a sequence of several primitives.
    """
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
    contents = Contents(program)
    stand_ins = contents.exact
    dense = one_device(contents, np.random.default_rng(seed))
    shape = {str(dim): size for dim, size in dense.shape.items()}
    try:
        run = emulate(program, _memories(contents, dense, seed), sequence)
    except EmulationError as error:
        return CheckReport(
            target, False, program.ranks, shape, message=str(error), stand_ins=stand_ins
        )
    differences = _differences(contents, dense, run.finished)
    wrong = [text for texts in differences.values() for text in texts]
    wrong += [
        f"expected {expected_sent} elements to leave each device, got {count} from device {rank}"
        for rank, count in enumerate(run.sent)
        if expected_sent is not None and count != expected_sent
    ]
    return CheckReport(
        target,
        not wrong,
        program.ranks,
        shape,
        {tensor: not texts for tensor, texts in differences.items()},
        tuple(map(_number, run.sent)),
        None if expected_sent is None else _number(expected_sent),
        tuple(run.peak),
        wrong[0] if wrong else None,
        stand_ins,
    )


def _memories(contents: Contents, dense: OneDevice, seed: int) -> list[Memory]:
    program = contents.program
    names = zip(initial_blocks(program), host_blocks(program), strict=True)
    return [
        {name: _array(contents, dense, name, rank, seed) for name in (*initial, *host)}
        for rank, (initial, host) in enumerate(names)
    ]


def _array(contents: Contents, dense: OneDevice, name: str, rank: int, seed: int) -> Array:
    """Return the array of an initial block: a slice of its full tensor, else random numbers.

    Replicas are equal. An initial output block has the neutral element of its reduction, so that
    the result can be compared.
    """
    home = contents.home(name)
    block = None if home is None else dense.block(home)
    if home is not None and block is not None:
        maker = contents.maker(home)
        before = PRIME - 1 if maker is not None and maker.reduction == "min" else 0
        return np.full_like(block, before) if home.tensor in dense.made else block
    key = contents.name(home) if home else f"{name} {rank}"
    rng = np.random.default_rng([seed, crc32(key.encode())])
    shape = contents.shape(name) or (LENGTH,) * (len(home.box) if home else 1)
    if contents.exact:
        return random_integers(rng, 0, PRIME, shape)
    return random_integers(rng, -4, 5, shape).astype(np.float64)


def _differences(
    contents: Contents, dense: OneDevice, finished: Several[Finished]
) -> dict[str, list[str]]:
    """Return for every output the errors of its blocks: other than on one device, or missing."""
    differences: dict[str, list[str]] = {tensor: [] for tensor in dense.made}
    seen = {tensor: np.zeros(dense.tensors[tensor].shape, bool) for tensor in dense.made}
    for rank, home, array in finished:
        window = dense.window(home) if home.tensor in dense.made else None
        if window is None:
            continue
        seen[home.tensor][window] = True
        numbers = np.mod(array, PRIME) if contents.exact else array
        if not np.array_equal(numbers, dense.tensors[home.tensor][window]):
            differences[home.tensor].append(
                f"expected {contents.name(home)} as one device computes it, "
                f"got another on device {rank}"
            )
    for tensor, homes in dense.made.items():
        differences[tensor] += [
            f"expected a finished {contents.name(home)} in some memory at the end, got it in none"
            for home in homes
            if not seen[tensor][dense.window(home)].all()
        ]
    return differences


def _number(count: Fraction) -> Number:
    return count.numerator if count.denominator == 1 else float(count)


def _range(numbers: tuple[Number, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
