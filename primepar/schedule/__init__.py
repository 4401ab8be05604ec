"""Primitives, sequences, what they move, and the program that they lower to.

The files, in the order in which to read them:

    the map       expression, primitive, operators, tracing, sequence, movement, layout;
                  polynomial_form and lower_bound are about maps, too
    lowering      lowering
    the program   grammar: signature, program, program_file     meaning: meaning
                  what instructions do: effects, matching       order: transport, waits, one_queue
                  bytes and peaks: ledger                       mistakes: evidence, words
                  a method that writes one: program_method      what a run did: events
                  what a verdict is about: properties

`deadline` and `sharing` serve all of them: a limit of time, and what is computed once.
"""

from primepar.schedule.expression import where
from primepar.schedule.layout import Layout, redistribution
from primepar.schedule.lowering import lower
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.program import Program
from primepar.schedule.program_file import load_program, program_text, save_program
from primepar.schedule.sequence import Element, Nesting, Sequence

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
