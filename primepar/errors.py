"""Exception classes, one for each kind of error, all under `PrimeParError`.

A message is one line: what was expected, what was given, where, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(
    name: str, known: Iterable[str], before: str = "", after: str = "", cutoff: float = 0.6
) -> str:
    """Return `: write NEAREST` with the most similar known name; empty if none is similar.

    Case is ignored: `PrimePar` is similar to `primepar`.
    """
    lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return f": write {before}{lower[near[0]]}{after}" if near else ""


def one_line(text: str) -> str:
    """Text with one space for any white space, and what a terminal would obey written out."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


class PrimeParError(Exception):
    """Base of every error that a user can cause; the command line ends with `exit_code`."""

    exit_code = 2


class PrimitiveError(PrimeParError):
    """A primitive cannot be read: its file raises, or its map is not a map of slices."""


class SymbolicError(PrimitiveError):
    """A map uses what has no symbolic form (`if`, a product of indices); use `where` and `%`."""


class SequenceError(PrimeParError):
    """A partition sequence is misspelt, or its primitives do not fit together."""


class TargetError(PrimeParError):
    """A TARGET is neither a registered name, a sequence, a `file.py:Class` nor a program file."""


class MethodError(PrimeParError):
    """The sizes of a method do not fit together, or it has no such size."""


class ShapeError(PrimeParError):
    """A tensor dim is not a multiple of the number of slices it is cut into."""


class MeshError(PrimeParError):
    """The number of processes or devices is not the one that the mesh needs."""


class UnknownSizeError(PrimeParError):
    """The elements of a block are asked for, and the program defines neither shape nor cuts."""


class TextError(PrimeParError):
    """A text is no JSON or TOML: not UTF-8, broken, nested too deeply, or it has a key twice."""


class OutputError(PrimeParError):
    """An output would replace a file that the same command reads."""


class ProgramError(PrimeParError):
    """A program file is not a program: broken JSON, an unknown instruction, a wrong type."""


class FormatError(PrimeParError):
    """A file of another tool, a schedule or a dump, cannot be read as a program."""


class PlanError(PrimeParError):
    """A plan does not fit the model and the mesh, or a method cannot be planned on them."""


class MemoryLimitError(PrimeParError):
    """A limit of device memory is below the minimum, or a run exceeds it."""

    def __init__(self, message: str, least: int | None = None) -> None:
        super().__init__(message)
        self.least = least
        """The least limit that would do, in elements, if it is known."""


class ClusterError(PrimeParError):
    """A cluster file is wrong or lacks a number, or the cluster is too small for the request."""


class UndecidedError(PrimeParError):
    """A solver ran out of time before it found a plan or proved that none exists."""

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
    """The processes cannot start together: `mpirun` of another MPI, no world, no device."""


class KernelError(PrimeParError):
    """A kernel cannot run here: Triton is missing, or the sizes or dtype are not for it."""


class CertificateError(PrimeParError):
    """A file is not a certificate, or the target has no certificate."""


class ClaimError(CertificateError):
    """A certificate makes a claim that does not hold for its target."""

    exit_code = 1


class RefutedError(PrimeParError):
    """A program that should run is refuted, or has no proof."""

    exit_code = 1


class ConformanceError(PrimeParError):
    """A rank did something that differs from the proved program."""

    exit_code = 1


class EmulationError(PrimeParError):
    """The emulated devices found an error in the schedule itself (not in the user's input)."""

    exit_code = 1


class MissingBlockError(EmulationError):
    """An instruction names a block that is not in the device's memory at that moment."""


class WrongDataError(EmulationError):
    """A block does not hold the data of its name, or a sum would add a term twice."""


class InFlightError(EmulationError):
    """A block is read, overwritten or freed while a message that uses it is in flight."""


class MismatchError(EmulationError):
    """The two ends of a message, the members of a collective, or post and wait do not agree."""


class DeadlockError(EmulationError):
    """Every device that has not finished waits for another device."""


class DeviceMemoryError(EmulationError):
    """The live blocks of a device take more than the bound of the program."""


class IncompleteError(EmulationError):
    """A block ends on the wrong device, or its sum lacks terms when it is read or at the end."""


class CaptureError(PrimeParError):
    """A script cannot be captured: it raises, needs a GPU, never ends or communicates nothing."""
