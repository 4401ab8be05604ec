"""Compiles the Stream-K kernel for a CUDA capability, `python compile_stream_k.py 90`.

It prints the dtypes. No device is needed; Triton has an assembler of its own.
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from primepar.distributed.kernels.stream_k_triton import stream_k_kernel

DTYPES = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}
TILES = {"BM": 64, "BN": 32, "BK": 64}


def compile_for(capability: int, dtype: str) -> None:
    """Compile the kernel to machine code. Raises what Triton raises."""
    types = dict.fromkeys(stream_k_kernel.arg_names, "i32")
    types |= dict.fromkeys(("I_ptr", "W_ptr", "O_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("flag_ptr", "ticket_ptr", "part_ptr", "first_ptr"), "*i32")
    types |= {"partial_ptr": "*fp32", **dict.fromkeys(TILES, "constexpr")}
    source = ASTSource(stream_k_kernel, types, constexprs=TILES)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    flags = [line for line in compiled.asm["ptx"].splitlines() if ".gpu.acquire" in line]
    if "cubin" not in compiled.asm or not flags:
        raise SystemExit("expected machine code that waits for flags")


if __name__ == "__main__":
    for dtype in DTYPES.values():
        compile_for(int(sys.argv[1]), dtype)
    print(*DTYPES)
