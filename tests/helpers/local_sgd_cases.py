"""Models and batches of local SGD in small integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.models import GPTConfig
from primepar.operators import StepInputs, StepSettings
from primepar.partition.local_sgd import LocalSGD
from primepar.reference.emulator.executor import emulate
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import StepKernels
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Program

Whole = dict[str, NDArray[Any]]
SETTINGS = StepSettings(GPTConfig(), 1, 1)
"""No kernel of these programs reads them."""


def drawn(method: LocalSGD, seed: int) -> Whole:
    """A model and batches of small integers; the batches of a step are by worker."""
    rng, whole = np.random.default_rng(seed), dict[str, NDArray[Any]]()
    shape = (method.workers, method.rows)
    whole["model.0"] = rng.integers(-2, 3, (method.inputs, method.outputs)).astype(float)
    for step in range(method.steps):
        whole[f"x.{step}"] = rng.integers(-1, 2, (*shape, method.inputs)).astype(float)
        whole[f"y.{step}"] = rng.integers(-2, 3, (*shape, method.outputs)).astype(float)
    return whole


def emulated(program: Program, method: LocalSGD, whole: Whole) -> NDArray[Any]:
    """The last model, from emulated devices. The rate is the number of workers, so it is whole."""
    meaning = Meaning(program)
    memories = spread_tensors(meaning, whole)
    inputs = StepInputs(rate=float(method.workers))
    done = emulate(program, memories, kernels=StepKernels(SETTINGS, inputs))
    last, shape = f"model.{method.steps}", (method.inputs, method.outputs)
    return gather_tensors(meaning, done.memories, {last: shape})[last]
