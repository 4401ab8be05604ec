"""Runs programs on torch: the executor, a partitioned linear operator, a GPT made of it.

The names load torch when they are first used, so that settings can be judged without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primepar.distributed.executor import Executor
    from primepar.distributed.gpt import GPT
    from primepar.distributed.linear import PartitionedLinear
    from primepar.distributed.mesh import Mesh
    from primepar.distributed.parameters import (
        full_gradient,
        full_parameter,
        load_parameter,
        parameter_layout,
    )
    from primepar.distributed.redistribute import gather_tensor, scatter_tensor
    from primepar.distributed.storage import Memory

_MODULES = {
    "GPT": "gpt",
    "Executor": "executor",
    "Memory": "storage",
    "Mesh": "mesh",
    "PartitionedLinear": "linear",
    "full_gradient": "parameters",
    "full_parameter": "parameters",
    "gather_tensor": "redistribute",
    "load_parameter": "parameters",
    "parameter_layout": "parameters",
    "scatter_tensor": "redistribute",
}

__all__ = [
    "GPT",
    "Executor",
    "Memory",
    "Mesh",
    "PartitionedLinear",
    "full_gradient",
    "full_parameter",
    "gather_tensor",
    "load_parameter",
    "parameter_layout",
    "scatter_tensor",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
