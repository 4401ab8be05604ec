"""What a sub-operator computes.

A signature says what a phase reads and writes, not what it computes. In a program with signatures
every phase has a stand-in, ours: the product of what it reads, element by element, summed over the
dims that the output does not have, or the largest or smallest of these products. It is exact, in
integers modulo a prime. So it shows that data was moved, reduced and placed rightly, and nothing
of the function in whose place it stands. In a program of a linear operator alone the three phases
are computed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from primepar.reference.emulator.provenance import Array
from primepar.schedule.meaning import Phase
from primepar.schedule.signature import Template

PRIME = 1_048_573
"""Largest below 2**20: in int64 a sum of 2**23 products of two numbers below it is exact."""
LENGTH = 2
"""Elements of a block along a dim for which nothing tells a number."""

Axis = tuple[str, int, int]
"""An axis of a block: (dim, 0) or ("", slice), and how often the block has had it before."""


def stand_in(phase: Phase, arrays: Sequence[Array], shape: Sequence[int] | None = None) -> Array:
    """What a sub-operator makes of its operands, modulo `PRIME`.

    Where a dim has more elements in one block than in another, both are brought to their greatest
    common divisor: neighbours of the longer one are summed, and repeated where it is the output.
    Without a shape the output has that divisor. Raises `ValueError` for arrays with other dims.
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
    made = _summed(operands, out) if phase.reduction == "sum" else _chosen(phase, operands, out)
    for at, length in enumerate(shape or ()):
        made = np.repeat(made, length // made.shape[at], axis=at)
    return made


def axes(template: Template) -> list[Axis]:
    """The axes of a block; a slice of a dim and one of its divisors are laid side by side."""
    found: list[Axis] = []
    for dim, number in template.entries:
        kind = (dim, 0 if dim else number)
        found.append((*kind, sum(axis[:2] == kind for axis in found)))
    return found


def _grouped(array: Array, lengths: Sequence[int]) -> Array:
    """Neighbours summed until each axis has its length."""
    if array.shape == tuple(lengths):
        return array
    pairs = zip(array.shape, lengths, strict=True)
    split = [part for size, length in pairs for part in (length, size // length)]
    inner = tuple(range(1, 2 * len(lengths), 2))
    return np.asarray(array.reshape(split).sum(axis=inner) % PRIME)


def _summed(operands: Sequence[tuple[Array, list[Axis]]], out: list[Axis]) -> Array:
    """Contract one operand after the other, dropping an axis once nobody needs it."""
    total, own = operands[0]
    for at, (array, names) in enumerate(operands[1:], 2):
        later = {*out, *(axis for _, each in operands[at:] for axis in each)}
        kept = [axis for axis in dict.fromkeys((*own, *names)) if axis in later]
        total, own = _product(total, own, array, names, kept), kept
    return np.transpose(total, [own.index(axis) for axis in out])


def _chosen(phase: Phase, operands: Sequence[tuple[Array, list[Axis]]], out: list[Axis]) -> Array:
    """Multiply all, then take the largest or smallest along each axis that is not in the output."""
    total, own = operands[0]
    for array, names in operands[1:]:
        kept = list(dict.fromkeys((*own, *names)))
        total, own = _product(total, own, array, names, kept), kept
    own_first = [*out, *(axis for axis in own if axis not in out)]
    total = np.transpose(total, [own.index(axis) for axis in own_first])
    inner = tuple(range(len(out), len(own)))
    return np.asarray(total.max(axis=inner) if phase.reduction == "max" else total.min(axis=inner))


def _product(
    one: Array, names: list[Axis], other: Array, others: list[Axis], kept: list[Axis]
) -> Array:
    numbers = {axis: at for at, axis in enumerate(dict.fromkeys((*names, *others)))}
    labels = [[numbers[axis] for axis in each] for each in (names, others, kept)]
    return np.asarray(np.einsum(one, labels[0], other, labels[1], labels[2]) % PRIME)
