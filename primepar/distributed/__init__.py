"""Runs programs on torch: the executor, a partitioned linear operator, a GPT made of it."""

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

__all__ = [
    "GPT",
    "Executor",
    "Mesh",
    "PartitionedLinear",
    "full_gradient",
    "full_parameter",
    "gather_tensor",
    "load_parameter",
    "parameter_layout",
    "scatter_tensor",
]
