"""Reference in pure NumPy: the dense one-device oracle, and emulated devices that run programs.

Whole models are in `primepar.reference.emulator.model`; it loads the transformer and its kernels.
"""

from primepar.reference.check import CheckReport, check, check_program
from primepar.reference.emulator.executor import Emulation, emulate
from primepar.reference.emulator.linear import EmulatedLinear, emulated_step
from primepar.reference.emulator.tensors import gather, scatter
from primepar.reference.oracle.linear import LinearStep, linear_step

__all__ = [
    "CheckReport",
    "EmulatedLinear",
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
