"""The byte-level GPT of `primepar.models` under one sequence."""

from __future__ import annotations

from primepar.distributed.modules.model import PartitionedModel
from primepar.distributed.runtime.mesh import Mesh
from primepar.models import ModelConfig
from primepar.plan.uniform import uniform_plan


class GPT(PartitionedModel):
    """A GPT on a mesh; its parameters are this rank's blocks, with their names in the config.

    Every rank constructs it and calls it in the same order. Raises `ConfigError` if the number of
    slices does not divide a size of the config, `SequenceError` or `PlanError` if the sequence
    cannot run it.
    """

    def __init__(self, config: ModelConfig, mesh: Mesh, seed: int = 0) -> None:
        super().__init__(uniform_plan(config, mesh.sequence), mesh, seed)
