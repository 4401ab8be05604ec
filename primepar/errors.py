"""One exception class per way to be wrong, all under `PrimeParError`.

A message is one line: what was expected, what came, where, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(
    name: str, known: Iterable[str], before: str = "", after: str = "", cutoff: float = 0.6
) -> str:
    """`: write NEAR`, with the nearest of the known names; empty where none is near.

    Case does not count: `PrimePar` is near `primepar`.
    """
    lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return f": write {before}{lower[near[0]]}{after}" if near else ""


class PrimeParError(Exception):
    """Base of every error that a user can cause; the command line ends with `exit_code`."""

    exit_code = 2


class PrimitiveError(PrimeParError):
    """A primitive cannot be read: its file raises, or its map is not a map of slices."""


class SymbolicError(PrimitiveError):
    """A map uses what symbols cannot follow (`if`, a product of indices); `where` and `%` can."""


class SequenceError(PrimeParError):
    """A partition sequence is misspelt, or its primitives do not fit together."""


class TargetError(PrimeParError):
    """A TARGET is neither a registered name, a sequence, a `file.py:Class` nor a program file."""


class ShapeError(PrimeParError):
    """A tensor dim is not a multiple of the number of slices it is cut into."""


class MeshError(PrimeParError):
    """The number of processes or devices is not the one that the mesh needs."""


class ProgramError(PrimeParError):
    """A program file is not a program: broken JSON, an unknown instruction, a wrong type."""


class PlanError(PrimeParError):
    """A plan is no plan for this model and mesh, or a method cannot be planned on them."""


class ClusterError(PrimeParError):
    """A cluster file is wrong or lacks a number, or the cluster is too small for what is asked."""


class UndecidedError(PrimeParError):
    """A solver ran out of time before it found a plan, or that there is none."""

    exit_code = 3


class DataError(PrimeParError):
    """The training text is missing, empty or shorter than one batch."""


class ConfigError(PrimeParError):
    """A training or model setting is out of range or does not fit the others."""


class CheckpointError(PrimeParError):
    """A saved run cannot be read, or belongs to another model."""


class WeightError(PrimeParError):
    """A weight file is cut short, or a tensor of it is missing, unknown or of another shape."""


class LaunchError(PrimeParError):
    """The launcher and the processes disagree: another MPI's `mpirun`, no world, no device."""


class CertificateError(PrimeParError):
    """A file is no certificate, or there is nothing that one could be of."""


class ClaimError(CertificateError):
    """A certificate claims what does not hold of its target."""

    exit_code = 1


class RefutedError(PrimeParError):
    """A program that was to run is not proved."""

    exit_code = 1


class ConformanceError(PrimeParError):
    """A rank has done something else than the program that was proved says."""

    exit_code = 1


class EmulationError(PrimeParError):
    """The emulated devices met something that is wrong in the schedule itself (not bad input)."""

    exit_code = 1


class MissingBlockError(EmulationError):
    """An instruction names a block that is not in the device's memory then."""


class WrongDataError(EmulationError):
    """A block holds other data than its name says, or a sum would take a term twice."""


class InFlightError(EmulationError):
    """A block is read, overwritten or freed while a message that uses it is in flight."""


class MismatchError(EmulationError):
    """The two ends of a message, the members of a collective, or post and wait do not agree."""


class DeadlockError(EmulationError):
    """Every device that has not finished waits for another one."""


class IncompleteError(EmulationError):
    """A block ends in the wrong place, or ends or is read without every term of its sum."""
