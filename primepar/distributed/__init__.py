"""Runs programs on torch: the executor, a partitioned linear operator, models made of it.

The names load torch when they are first used, so that settings can be judged without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primepar.distributed.modules.gpt import GPT
    from primepar.distributed.modules.linear import PartitionedLinear
    from primepar.distributed.modules.model import PartitionedModel
    from primepar.distributed.modules.parameters import (
        full_gradient,
        full_logits,
        full_parameter,
        load_parameter,
        parameter_layout,
    )
    from primepar.distributed.modules.weights import load_weights, save_weights
    from primepar.distributed.runtime.executor import Executor
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.runtime.scatter_gather import gather_tensor, scatter_tensor

_MODULES = {
    "GPT": "modules.gpt",
    "Executor": "runtime.executor",
    "Mesh": "runtime.mesh",
    "PartitionedLinear": "modules.linear",
    "PartitionedModel": "modules.model",
    "full_gradient": "modules.parameters",
    "full_logits": "modules.parameters",
    "full_parameter": "modules.parameters",
    "gather_tensor": "runtime.scatter_gather",
    "load_parameter": "modules.parameters",
    "load_weights": "modules.weights",
    "parameter_layout": "modules.parameters",
    "save_weights": "modules.weights",
    "scatter_tensor": "runtime.scatter_gather",
}

__all__ = [
    "GPT",
    "Executor",
    "Mesh",
    "PartitionedLinear",
    "PartitionedModel",
    "full_gradient",
    "full_logits",
    "full_parameter",
    "gather_tensor",
    "load_parameter",
    "load_weights",
    "parameter_layout",
    "save_weights",
    "scatter_tensor",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
