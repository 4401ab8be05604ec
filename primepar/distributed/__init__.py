"""Runs programs on torch: the executor, partitioned models, and users' own modules in parallel.

A name is imported at its first use, so that settings can be checked without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from primepar.distributed.modules.model import PartitionedModel as PartitionedModel
    from primepar.distributed.modules.model import full_gradient as full_gradient
    from primepar.distributed.modules.model import full_logits as full_logits
    from primepar.distributed.modules.model import full_parameter as full_parameter
    from primepar.distributed.modules.model import load_parameter as load_parameter
    from primepar.distributed.modules.weights import load_weights as load_weights
    from primepar.distributed.modules.weights import save_weights as save_weights
    from primepar.distributed.parallel.batches import clip_grad_norm as clip_grad_norm
    from primepar.distributed.parallel.batches import full_state_dict as full_state_dict
    from primepar.distributed.parallel.batches import local_rows as local_rows
    from primepar.distributed.parallel.batches import loss_weight as loss_weight
    from primepar.distributed.parallel.layer_plan import Region as Region
    from primepar.distributed.parallel.module import parallelize as parallelize
    from primepar.distributed.parallel.placements import device_mesh_of as device_mesh_of
    from primepar.distributed.parallel.placements import layout_of as layout_of
    from primepar.distributed.parallel.placements import placements_of as placements_of
    from primepar.distributed.runtime.executor import Executor as Executor
    from primepar.distributed.runtime.mesh import Mesh as Mesh
    from primepar.distributed.runtime.scatter_gather import gather_tensor as gather_tensor
    from primepar.distributed.runtime.scatter_gather import scatter_tensor as scatter_tensor

_MODULES = {
    "Executor": "runtime.executor",
    "Mesh": "runtime.mesh",
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
    "placements_of": "parallel.placements",
    "save_weights": "modules.weights",
    "scatter_tensor": "runtime.scatter_gather",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
