"""PatrickStar's program on torch, for the tests: what each rank ends with on its host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from primepar.distributed import Executor, Mesh
from primepar.models import GPTConfig
from primepar.operators import StepInputs, StepSettings
from primepar.partition import parse_sequence
from primepar.partition.patrickstar import PatrickStar
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Program

SETTINGS = StepSettings(
    GPTConfig(layers=1, hidden=2, heads=1, context=2, vocabulary=4), batch=1, positions=2
)
INPUTS = StepInputs(None, 0.1, 1)


def arrays(program: Program) -> list[dict[str, Any]]:
    """Positive numbers for the blocks that each rank begins with; replicas are equal."""
    meaning, known = Meaning(program), dict[str, Any]()
    pairs = zip(program.initial or (), program.host_initial or (), strict=True)
    ranks = [(*here, *there) for here, there in pairs]
    random = np.random.default_rng(0)
    for name in dict.fromkeys(name for names in ranks for name in names):
        place = meaning.place(name)
        assert place is not None
        known[name] = random.uniform(0.1, 1, [end - first for first, end in place.box])
    return [{name: known[name] for name in names} for names in ranks]


def ran(method: PatrickStar) -> dict[str, Any]:
    """Run on this rank, at the limit of the program."""
    program = method.program()
    rank = dist.get_rank() if dist.is_initialized() else 0
    assert program.memory is not None
    limit = 8 * (program.memory.device or 0)
    mesh = Mesh(parse_sequence(f"M{method.ranks}" if method.ranks > 1 else ""),
                dtype=torch.float64, device_memory=limit)  # fmt: skip
    given = {name: torch.from_numpy(array.copy()) for name, array in arrays(program)[rank].items()}
    host = {name: given[name] for name in (program.host_initial or ())[rank]}
    blocks = {name: given[name] for name in (program.initial or ())[rank]}
    Executor(mesh, program, SETTINGS)(blocks, INPUTS, host)
    return {name: host[name].numpy().copy() for name in (program.host_final or ())[rank]}
