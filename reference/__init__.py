"""Pure NumPy: the dense one-device oracle, the emulated devices and the executor of programs."""

from primepar.reference.blocks import gather, scatter
from primepar.reference.check import CheckReport, check, check_program
from primepar.reference.dense import Step, linear_step
from primepar.reference.emulation import Emulation
from primepar.reference.executor import emulate
from primepar.reference.linear import EmulatedLinear, emulated_step
from primepar.reference.model import EmulatedModel

__all__ = [
    "CheckReport",
    "EmulatedLinear",
    "EmulatedModel",
    "Emulation",
    "Step",
    "check",
    "check_program",
    "emulate",
    "emulated_step",
    "gather",
    "linear_step",
    "scatter",
]
