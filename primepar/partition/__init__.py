"""The library of primitives, one file per method, and their names."""

from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence
from primepar.partition.primepar import PrimePar
from primepar.partition.registry import METHODS, PRIMITIVES, parse_method, parse_sequence

__all__ = [
    "METHODS",
    "PRIMITIVES",
    "ByBatch",
    "ByInput",
    "ByOutput",
    "BySequence",
    "PrimePar",
    "parse_method",
    "parse_sequence",
]
