"""The operators of a training step, each defined once, and the one program that they make.

An operator is a file: the signatures of its phases (what they read, write and reduce, and what is
kept for backward), where its tensors must lie, and what moves. Each phase names the kernel that
computes it; a reader of programs has one function for every kernel.
"""

from primepar.operators.kernel_sites import Site, StepInputs, StepSettings, site_of
from primepar.operators.step import Until, lower_step, parameter_views

__all__ = [
    "Site",
    "StepInputs",
    "StepSettings",
    "Until",
    "lower_step",
    "parameter_views",
    "site_of",
]
