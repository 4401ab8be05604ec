"""Degrees of parallelism that a question fixes, as --tp 4, in the words of Megatron.

A linear operator of a layer has its rows cut in some slices, and each slice has a number of devices
that divide its products in other ways: tensor parallelism. Slices of whole sequences are data
parallelism, and parts of one sequence are context parallelism. Example: eight sequences under
`M4,K2` are four copies of two devices, `--dp 4 --tp 2`. One sequence under it is in four parts,
`--cp 4 --tp 2`. Other operators are free: a norm of sequence parallelism has rows on all devices.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from primepar.errors import ConfigError


class Axes(NamedTuple):
    """Devices along each axis; None where the search chooses."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None

    def slices(self, devices: int, sequences: int, replicas: int = 1) -> frozenset[int] | None:
        """Slices of the rows of `sequences` on a power of two of devices; None for any number.

        There may be several `replicas` of these devices and sequences.
        """
        if (self.tp, self.dp, self.cp) == (None, None, None):
            return None
        allowed, slices = list[int](), 1
        while slices <= devices:
            whole = gcd(slices, sequences)
            degrees = devices // slices, replicas * whole, slices // whole
            asked = self.tp, self.dp, self.cp
            if all(want in (None, degree) for want, degree in zip(asked, degrees, strict=True)):
                allowed.append(slices)
            slices *= 2
        return frozenset(allowed)

    def refusal(self, devices: int, batch: int) -> ConfigError:
        """The error for devices that have no such axes."""
        given = [f"--{axis} {size}" for axis, size in self._asdict().items() if size is not None]
        return ConfigError(
            f"{given[0].partition(' ')[0]}: expected degrees that multiply to the {devices} "
            f"devices, of which --dp divides the batch of {batch}, got {' '.join(given)}: leave "
            "one out"
        )


FREE = Axes()
"""No axis is fixed."""
