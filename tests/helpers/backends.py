"""Where a test of several ranks runs: on gloo and CPUs, and on NCCL and GPUs with `-m gpu`.

With HYPOTHESIS_PROFILE=ci also on CPUs under NCCL's rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from nccl_rules import EAGER
from profiles import long

Function = TypeVar("Function", bound=Callable[..., Any])
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BACKENDS = ["gloo", pytest.param("nccl", marks=ON_GPU)]
IN_SUITE = "PRIMEPAR_GPU_SUITE"
"""Set by `make gpu`, which runs its own cases on CPUs too."""
OF_SUITE = pytest.param("gloo", marks=[] if IN_SUITE in os.environ else long)
LONG = [OF_SUITE, *BACKENDS[1:], pytest.param(EAGER, marks=long)]
"""For tests of which other ones run the like on gloo; on CPUs only with the long profile."""
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]


def gpu(test: Function) -> Function:
    """Mark a test that has sense on a GPU alone."""
    for mark in ON_GPU:
        test = mark(test)
    return test
