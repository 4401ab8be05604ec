"""Runs programs on torch: the executor, partitioned models, and users' own modules in parallel.

A name is imported at its first use, so that settings can be checked without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primepar.distributed.modules.linear import PartitionedLinear
    from primepar.distributed.modules.model import (
        GPT,
        PartitionedModel,
        full_gradient,
        full_logits,
        full_parameter,
        load_parameter,
        parameter_layout,
    )
    from primepar.distributed.modules.weights import load_weights, save_weights
    from primepar.distributed.parallel.batches import (
        clip_grad_norm,
        full_state_dict,
        local_rows,
        loss_weight,
    )
    from primepar.distributed.parallel.layer_plan import Region
    from primepar.distributed.parallel.module import parallelize
    from primepar.distributed.parallel.placements import device_mesh_of, layout_of, placements_of
    from primepar.distributed.runtime.executor import Executor
    from primepar.distributed.runtime.mesh import Mesh
    from primepar.distributed.runtime.scatter_gather import gather_tensor, scatter_tensor

_MODULES = {
    "Executor": "runtime.executor",
    "GPT": "modules.model",
    "Mesh": "runtime.mesh",
    "PartitionedLinear": "modules.linear",
    "PartitionedModel": "modules.model",
    "Region": "parallel.layer_plan",
    "clip_grad_norm": "parallel.batches",
    "device_mesh_of": "parallel.placements",
    "full_gradient": "modules.model",
    "full_logits": "modules.model",
    "full_parameter": "modules.model",
    "full_state_dict": "parallel.batches",
    "gather_tensor": "runtime.scatter_gather",
    "layout_of": "parallel.placements",
    "load_parameter": "modules.model",
    "load_weights": "modules.weights",
    "local_rows": "parallel.batches",
    "loss_weight": "parallel.batches",
    "parallelize": "parallel.module",
    "parameter_layout": "modules.model",
    "placements_of": "parallel.placements",
    "save_weights": "modules.weights",
    "scatter_tensor": "runtime.scatter_gather",
}

__all__ = [
    "GPT",
    "Executor",
    "Mesh",
    "PartitionedLinear",
    "PartitionedModel",
    "Region",
    "clip_grad_norm",
    "device_mesh_of",
    "full_gradient",
    "full_logits",
    "full_parameter",
    "full_state_dict",
    "gather_tensor",
    "layout_of",
    "load_parameter",
    "load_weights",
    "local_rows",
    "loss_weight",
    "parallelize",
    "parameter_layout",
    "placements_of",
    "save_weights",
    "scatter_tensor",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
