"""What a step costs, for the log: the model's floating-point operations, peaks and memory.

MFU, the model FLOPs utilization, is tokens per second times the model's operations per token, out
of what the devices could do (Chowdhery et al., PaLM, 2022, appendix B). Operations that are
repeated, by recomputation, are not counted.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from primepar.models import ModelConfig
from primepar.models.config import flops_per_token

MemoryOf = Literal["device", "process"]
PEAKS: dict[str, dict[str, float]] = {
    "V100-SXM2": {"float32": 15.7, "float16": 125},
    "A100": {"float32": 19.5, "bfloat16": 312, "float16": 312},
    "H100 PCIe": {"float32": 51, "bfloat16": 756, "float16": 756},
    "H100 80GB HBM3": {"float32": 67, "bfloat16": 989, "float16": 989},
    "H200": {"float32": 67, "bfloat16": 989, "float16": 989},
}
"""Part of a GPU's name -> dtype of products -> dense TFLOP/s, from NVIDIA's data sheets.

Their figures for sparse matrices are twice those of half precision here. Float32 is without TF32,
as torch computes by default."""


@dataclass(frozen=True)
class Speed:
    """How fast one run could be: operations of a token, and the peak of each of `ranks` devices."""

    flops_per_token: int
    ranks: int
    peak_tflops: float | None

    def mfu(self, tokens_per_second: float) -> float | None:
        """Return the share of the peak that a speed is; None where the peak is not known."""
        if self.peak_tflops is None:
            return None
        return tokens_per_second * self.flops_per_token / (self.ranks * self.peak_tflops * 1e12)


def peak_tflops(name: str, dtype: str) -> float | None:
    """Return the peak of a GPU by its name; None if it is not in the table."""
    of_name = (peaks for part, peaks in PEAKS.items() if part in name)
    return next(of_name, {}).get(dtype)


def speed_of(
    model: ModelConfig, ranks: int, device: torch.device, dtype: str, given: float | None
) -> Speed:
    """Return what a run can be compared with; a peak that is given counts, else the table's."""
    peak = given
    if peak is None and device.type == "cuda":
        peak = peak_tflops(torch.cuda.get_device_name(device), dtype)
    return Speed(flops_per_token(model), ranks, peak)


def memory_of(device: torch.device) -> MemoryOf:
    """Return whose memory `peak_memory` counts: torch's on the GPU, or all of the process."""
    return "device" if device.type == "cuda" else "process"


def peak_memory(device: torch.device) -> int:
    """Return the most bytes so far of tensors on the GPU, or of the process on a CPU (its RSS)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
