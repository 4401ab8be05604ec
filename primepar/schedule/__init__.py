"""Primitives, sequences, what they move, and the program that they lower to."""

from primepar.schedule.expression import where
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import lower
from primepar.schedule.movement import Movement
from primepar.schedule.nesting import Nesting
from primepar.schedule.operators import Linear
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.program import Program
from primepar.schedule.program_file import load_program, program_text, save_program
from primepar.schedule.redistribute import redistribution
from primepar.schedule.sequence import Element, Sequence

__all__ = [
    "ANY",
    "Element",
    "Layout",
    "Linear",
    "Movement",
    "Nesting",
    "Primitive",
    "Program",
    "Sequence",
    "load_program",
    "lower",
    "program_text",
    "redistribution",
    "save_program",
    "where",
]
