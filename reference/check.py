"""Do emulated devices compute what one device computes? Integers in float64, compared with ==."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from fractions import Fraction
from zlib import crc32

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from primepar.errors import EmulationError
from primepar.operators import lower_step
from primepar.plan.plan import Plan
from primepar.reference.emulator.emulation import Emulation, Finished
from primepar.reference.emulator.executor import emulate
from primepar.reference.emulator.expected_contents import Contents
from primepar.reference.emulator.model import step_difference
from primepar.reference.emulator.provenance import Array
from primepar.reference.emulator.scatter_gather import Memory
from primepar.reference.emulator.surrogate import LENGTH, PRIME
from primepar.reference.oracle.one_device import OneDevice, linear_tensors
from primepar.reference.oracle.phases import phase_tensors
from primepar.schedule.lowering import lower
from primepar.schedule.operators import Linear
from primepar.schedule.program import Program
from primepar.schedule.program_uses import host_blocks, initial_blocks
from primepar.schedule.sequence import Sequence

Number = int | float
CLOSE = 1e-10
"""Largest relative difference of a step on real numbers, which devices sum in another order."""

LISTED = 12
"""Tensors that a report lists one by one; of more only those that differ are."""


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
    stand_ins: bool = False
    """Whether something stood in for what the phases compute, as in programs with signatures."""
    difference: float | None = None
    """Of a plan's step on real numbers: that of loss and gradients from the dense model's."""

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
        if self.stand_ins and self.equal:
            yield (
                "  by stand-ins for what the phases compute: data is where it belongs, summed once"
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
    return _report(str(sequence), program, sequence, seed, formula(sequence, operator))


def check_program(program: Program, target: str = "program", seed: int = 0) -> CheckReport:
    """Run a program on emulated devices, and compare what its grid computes with one device.

    Blocks are random integers, two elements for each slice if the program has no shape. Without a
    grid there is nothing to compare, and the run itself is the check. In a program with signatures
    every phase has a stand-in, see `primepar.reference.emulator.surrogate`, and numbers are modulo
    a prime: equal means that data was moved, reduced and placed rightly, and nothing about the
    functions.
    Every tensor that it makes is compared, as its finished blocks are read by a phase, freed or
    left at the end. Raises `ShapeError` or `ProgramError` if grids, shape and cuts do not fit.
    """
    return _report(target, program, None, seed, None)


def check_plan(
    plan: Plan, batch: int, positions: int, target: str = "plan", seed: int = 0
) -> CheckReport:
    """Run a training step of a plan twice: as `check_program` does, and on real numbers.

    With these its loss and every gradient are compared with those of the dense transformer, with
    dropout. Raises `PlanError` for a batch that the plan does not divide.
    """
    report = check_program(lower_step(plan, batch, positions), target, seed)
    if report.message is not None:
        return report
    difference, name = step_difference(plan, batch, positions, seed)
    message = None if difference <= CLOSE else (
        f"expected {name} within {CLOSE:g} of the dense transformer's, got {difference:.1e} off"
    )  # fmt: skip
    return replace(report, difference=difference, message=message, equal=message is None)


def memories(program: Program, seed: int = 0) -> list[Memory]:
    """What `check_program` runs a program on: an array for every block that is there at first.

    Raises `ShapeError` or `ProgramError` if grids, shape and cuts do not fit.
    """
    contents = Contents(program)
    return _memories(contents, _one_device(contents, seed), seed)


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
    contents, stand_ins = Contents(program), bool(program.phases)
    one = _one_device(contents, seed)
    shape = {str(dim): size for dim, size in one.shape.items()}
    try:
        run = emulate(program, _memories(contents, one, seed), sequence)
    except EmulationError as error:
        return CheckReport(
            target, False, program.ranks, shape, message=str(error), stand_ins=stand_ins
        )
    found = _differences(contents, one, run.finished)
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
        stand_ins,
    )


def _one_device(contents: Contents, seed: int) -> OneDevice:
    make = phase_tensors if contents.program.phases else linear_tensors
    return make(contents, np.random.default_rng(seed))


def _memories(contents: Contents, one: OneDevice, seed: int) -> list[Memory]:
    program = contents.program
    names = zip(initial_blocks(program), host_blocks(program), strict=True)
    return [
        {name: _array(contents, one, name, rank, seed) for name in (*own, *host)}
        for rank, (own, host) in enumerate(names)
    ]


def _array(contents: Contents, one: OneDevice, name: str, rank: int, seed: int) -> Array:
    """Array of an initial block: cut from its whole tensor, else random, equal on all replicas.

    What an output block held before changes no sum, no maximum and no minimum, so that what the
    program makes of it can be compared.
    """
    home = contents.home(name)
    block = None if home is None else one.block(home)
    if home is not None and block is not None:
        maker = contents.maker(home)
        before = PRIME - 1 if maker is not None and maker.reduction == "min" else 0
        return np.full_like(block, before) if home.tensor in one.made else block
    own = contents.name(home) if home else f"{name} {rank}"
    rng = np.random.default_rng([seed, crc32(own.encode())])
    shape = contents.shape(name) or (LENGTH,) * (len(home.box) if home else 1)
    if contents.program.phases:
        return rng.integers(0, PRIME, shape)
    return rng.integers(-4, 5, shape).astype(np.float64)


def _differences(
    contents: Contents, one: OneDevice, finished: Several[Finished]
) -> dict[str, list[str]]:
    """Output -> what is wrong with its blocks: not as on one device, or finished nowhere."""
    found: dict[str, list[str]] = {tensor: [] for tensor in one.made}
    seen = {tensor: np.zeros(one.tensors[tensor].shape, bool) for tensor in one.made}
    for rank, home, array in finished:
        window = one.window(home) if home.tensor in one.made else None
        if window is None:
            continue
        seen[home.tensor][window] = True
        own = np.mod(array, PRIME) if contents.program.phases else array
        if not np.array_equal(own, one.tensors[home.tensor][window]):
            found[home.tensor].append(
                f"expected {contents.name(home)} as one device computes it, "
                f"got another on device {rank}"
            )
    for tensor, homes in one.made.items():
        found[tensor] += [
            f"expected a finished {contents.name(home)} in some memory at the end, got it in none"
            for home in homes
            if not seen[tensor][one.window(home)].all()
        ]
    return found


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


def _range(numbers: tuple[Number, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
