"""Guesses of who sends: one rule for all devices of a mesh, every axis a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from primepar.schedule.sequence import Coordinates

Row = tuple[int, ...]
"""One number for each axis."""
FARTHEST = 1
"""Steps to a neighbour, all axes together, up to which all nearer ones are listed."""


class FitError(Exception):
    """No simple rule explains what was seen on the concrete sides; the message says of what."""


@dataclass(frozen=True)
class Sender:
    """Where a block comes from: `matrix` times the receiver plus `offset`, every axis a ring.

    In most methods a neighbour: the matrix is the identity.
    """

    matrix: tuple[Row, ...]
    offset: Row

    @classmethod
    def neighbour(cls, offset: Row) -> Sender:
        """The device that far away."""
        axes = range(len(offset))
        return cls(tuple(tuple(int(i == j) for j in axes) for i in axes), offset)

    def of(self, device: Coordinates, lengths: Coordinates) -> Coordinates:
        """The device that sends to `device`."""
        rows = zip(self.matrix, self.offset, lengths, strict=True)
        return tuple((_times(row, device) + step) % length for row, step, length in rows)

    def nearer(self) -> list[Row] | None:
        """Offsets of all devices that are nearer to the receiver, itself included.

        On short rings they may be more than there are. None if the sender is no near neighbour.
        """
        if self != Sender.neighbour(self.offset) or sum(map(abs, self.offset)) > FARTHEST:
            return None
        far = range(-FARTHEST, FARTHEST + 1)
        every = product(far, repeat=len(self.offset))
        return [row for row in every if _far(row) < _far(self.offset)]

    @classmethod
    def common(cls, senders: Sequence[Sender], meshes: Sequence[Row]) -> Sender:
        """The sender that is each of these on its mesh. Raises `FitError` if there is none.

        Round 4 devices 2 and -2 are one, and round 2 devices all odd numbers: on one mesh alone
        nobody can tell which of them is meant.
        """
        axes = [list(column) for column in zip(*meshes, strict=True)]
        matrices = zip(*(sender.matrix for sender in senders), strict=True)
        offsets = zip(*(sender.offset for sender in senders), strict=True)
        return cls(
            tuple(
                tuple(_congruent(factors, lengths) for factors in zip(*rows, strict=True))
                for rows, lengths in zip(matrices, axes, strict=True)
            ),
            tuple(map(_congruent, offsets, axes)),
        )


def _far(offset: Row) -> tuple[int, int, list[tuple[bool, int]]]:
    """The order of holders, as `Sample.nearest` has it, by their offsets round long rings."""
    around = sum(map(abs, offset))
    return sum(step != 0 for step in offset), around, [(step < 0, step) for step in offset]


def _congruent(numbers: Sequence[int], lengths: Sequence[int]) -> int:
    """The number nearest to 0 that is each of these round the ring of that length."""
    if len(set(numbers)) == 1:
        return numbers[0]
    for far in range(1, max(lengths) + 1):
        for number in (far, -far):
            pairs = zip(numbers, lengths, strict=True)
            if all((number - each) % length == 0 for each, length in pairs):
                return number
    raise FitError("it moves differently for different sides")


def _times(row: Row, device: Coordinates) -> int:
    return sum(factor * at for factor, at in zip(row, device, strict=True))
