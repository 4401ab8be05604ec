"""Spatial-temporal tensor partitioning of transformers: written once, emulated, proved and run."""

from primepar.errors import PrimeParError
from primepar.schedule.expression import where
from primepar.schedule.primitive import ANY, Primitive

__version__ = "0.1.0"
__all__ = ["ANY", "PrimeParError", "Primitive", "__version__", "where"]
