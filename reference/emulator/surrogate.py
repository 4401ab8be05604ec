"""Stand-ins: exact functions in place of the phases of a program with signatures.

A signature defines what a phase reads and writes, not its function. The stand-in of a phase is the
element-wise product of its operands, summed over the dims that the output does not have (or their
maximum or minimum). It is exact, in integers modulo a prime. So a run shows that data was moved,
reduced and placed correctly, and nothing about the real function. A program of one linear operator
needs no stand-in: its three phases are computed directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from primepar.errors import ProgramError
from primepar.reference.emulator.contents import Array
from primepar.schedule.meaning import Phase
from primepar.schedule.signature import Scale, Template

PRIME = 1_048_573
"""Largest below 2**20: in int64 a sum of 2**23 products of two numbers below it is exact."""
LENGTH = 2
"""Elements of a block along a dim of unknown length."""

Axis = tuple[str, int, int]
"""An axis of a block: (dim, 0) or ("", slice), and its number among equal axes of the block."""


def stand_in(phase: Phase, arrays: Sequence[Array], shape: Sequence[int] | None = None) -> Array:
    """Return the result of a sub-operator on its operands, modulo `PRIME`.

    If a dim has different lengths in two blocks, both are reduced to their greatest common divisor:
    neighbours in an operand are summed; elements of the output are repeated. Without a shape the
    output has the divisor as length. Example: lengths 4 and 6 give 2. Raises `ValueError` for
    arrays with another number of dims.
    """
    reads, out = [axes(template) for template in phase.reads], axes(phase.writes)
    lengths: dict[Axis, int] = {}
    sizes = [array.shape for array in arrays] + ([] if shape is None else [tuple(shape)])
    for names, size in zip([*reads, out], sizes, strict=False):
        for axis, length in zip(names, size, strict=True):
            lengths[axis] = gcd(lengths.get(axis, 0), length)
    for axis in out:
        lengths.setdefault(axis, LENGTH)
    operands = [
        (_grouped(np.mod(array, PRIME).astype(np.int64), [lengths[axis] for axis in names]), names)
        for array, names in zip(arrays, reads, strict=True)
    ]
    missing = [axis for axis in out if not any(axis in names for names in reads)]
    operands.insert(0, (np.ones([lengths[axis] for axis in missing], np.int64), missing))
    made = _contracted(phase, operands, out)
    for dim, length in enumerate(shape or ()):
        made = np.repeat(made, length // made.shape[dim], axis=dim)
    return made


def modular(scale: Scale) -> int:
    """Return a coefficient modulo `PRIME`, which has an inverse for every denominator below it.

    Example: 1/2 is 524287, as 2 * 524287 = 1 modulo `PRIME`. Raises `ProgramError` for a
    denominator that is a multiple of `PRIME`.
    """
    if scale.denominator % PRIME == 0:
        raise ProgramError(
            f"expected a scale whose denominator is no multiple of {PRIME} for stand-ins, got "
            f"{scale}: check a program of another size"
        )
    return scale.numerator * pow(scale.denominator, -1, PRIME) % PRIME


def axes(template: Template) -> list[Axis]:
    """Return the axes of a block; the divisor of a dim is ignored."""
    names: list[Axis] = []
    for dim, number in template.entries:
        kind = (dim, 0 if dim else number)
        names.append((*kind, sum(axis[:2] == kind for axis in names)))
    return names


def _grouped(array: Array, lengths: Sequence[int]) -> Array:
    """Sum neighbours along each axis, so that it has its length."""
    if array.shape == tuple(lengths):
        return array
    pairs = zip(array.shape, lengths, strict=True)
    split = [part for size, length in pairs for part in (length, size // length)]
    inner = tuple(range(1, 2 * len(lengths), 2))
    return np.asarray(array.reshape(split).sum(axis=inner) % PRIME)


def _contracted(
    phase: Phase, operands: Sequence[tuple[Array, list[Axis]]], out: list[Axis]
) -> Array:
    """Multiply the operands one by one, and reduce along the axes that the output does not have."""
    total, total_axes = operands[0]
    for count, (array, names) in enumerate(operands[1:], 2):
        kept = list(dict.fromkeys((*total_axes, *names)))
        if phase.reduction == "sum":
            # a(b + c) = ab + ac: an axis that no later operand needs is summed at once. The largest
            # product is no product of largest numbers, modulo a prime: all axes are kept for it.
            later = {*out, *(axis for _, later_names in operands[count:] for axis in later_names)}
            kept = [axis for axis in kept if axis in later]
        total, total_axes = _product(total, total_axes, array, names, kept), kept
    out_first = [*out, *(axis for axis in total_axes if axis not in out)]
    total = np.transpose(total, [total_axes.index(axis) for axis in out_first])
    inner = tuple(range(len(out), len(total_axes)))
    if phase.reduction == "sum":
        return total
    return np.asarray(total.max(axis=inner) if phase.reduction == "max" else total.min(axis=inner))


def _product(
    left: Array, left_axes: list[Axis], right: Array, right_axes: list[Axis], kept: list[Axis]
) -> Array:
    distinct = dict.fromkeys((*left_axes, *right_axes))
    numbers = {axis: number for number, axis in enumerate(distinct)}
    labels = [[numbers[axis] for axis in names] for names in (left_axes, right_axes, kept)]
    return np.asarray(np.einsum(left, labels[0], right, labels[1], labels[2]) % PRIME)
