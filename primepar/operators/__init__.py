"""The operators of a training step, each defined once, and their lowering to one program.

Each operator has a file. It defines the signatures of its phases (what they read, write and reduce,
and what is kept for backward), the layouts of its tensors, and its communication. Each phase names
the kernel that computes it; a reader of programs has one function per kernel.
"""

from primepar.operators.kernel_sites import Site, StepInputs, StepSettings, site_of
from primepar.operators.optimizers import MASTER, AdamWConstants, Optimizer, state_suffixes
from primepar.operators.step import Until, lower_step, parameter_views, state_views
from primepar.operators.step_options import StepOptions
from primepar.operators.step_part import StepPart, lower_part

__all__ = [
    "MASTER",
    "AdamWConstants",
    "Optimizer",
    "Site",
    "StepInputs",
    "StepOptions",
    "StepPart",
    "StepSettings",
    "Until",
    "lower_part",
    "lower_step",
    "parameter_views",
    "site_of",
    "state_suffixes",
    "state_views",
]
