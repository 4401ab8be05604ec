"""What a step costs, for the log: the model's floating-point operations, peaks and memory.

MFU, the model FLOPs utilization, is tokens per second times the model's operations per token, out
of what the devices could do (Chowdhery et al., PaLM, 2022, appendix B). Operations that are
repeated, by recomputation, are not counted.
"""

from __future__ import annotations

import resource
import sys
from typing import Literal

import torch

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


def peak_of(device: torch.device, dtype: str) -> float | None:
    """Return the peak of a GPU by its name, in TFLOP/s; None if the table does not have it."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peaks for part, peaks in PEAKS.items() if part in name), {}).get(dtype)


def memory_of(device: torch.device) -> MemoryOf:
    """Return whose memory `peak_memory` counts: torch's on the GPU, or all of the process."""
    return "device" if device.type == "cuda" else "process"


def peak_memory(device: torch.device) -> int:
    """Return the most bytes so far of tensors on the GPU, or of the process on a CPU (its RSS)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
