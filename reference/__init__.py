"""Pure NumPy: the dense one-device oracle, the emulated devices and the executor of programs."""

from primepar.reference.check import CheckReport, check, check_program
from primepar.reference.emulator.emulation import Emulation
from primepar.reference.emulator.executor import emulate
from primepar.reference.emulator.linear import EmulatedLinear, emulated_step
from primepar.reference.emulator.model import EmulatedModel
from primepar.reference.emulator.scatter_gather import gather, scatter
from primepar.reference.oracle.linear import LinearStep, linear_step

__all__ = [
    "CheckReport",
    "EmulatedLinear",
    "EmulatedModel",
    "Emulation",
    "LinearStep",
    "check",
    "check_program",
    "emulate",
    "emulated_step",
    "gather",
    "linear_step",
    "scatter",
]
