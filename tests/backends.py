"""Where a test of several ranks runs: on gloo and CPUs, and on NCCL and GPUs with `-m gpu`."""

from __future__ import annotations

import pytest
import torch

BACKENDS = [
    "gloo",
    pytest.param(
        "nccl",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
