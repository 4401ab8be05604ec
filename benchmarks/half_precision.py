"""How large is the error of a bfloat16 product whose sum travels over several devices?

The product of two random matrices is a sum of s terms, one for each hop, as under PrimePar and the
stationary rings. The executor runs it on one process, since a message changes no bit of the sum.
Errors are relative, in the norm of all elements, against float64. They are divided by the error of
one dense bfloat16 product. Rounding a running sum to bfloat16 at every hop gives the formula
sqrt((s + 1) / 2): after term j the sum has j / s of its final variance, and each rounding adds an
error in proportion.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import sqrt
from typing import Annotated

import torch

from benchmarks.bench import BenchRow, Case, Column, bench
from primepar.distributed import Executor, Mesh
from primepar.partition import parse_sequence
from primepar.schedule.program import Compute, Cut, Program
from primepar.schedule.signature import Signature, Tensor

HOPS = (1, 2, 4, 8, 16)


class HopErrors(BenchRow, frozen=True):
    """Errors of a sum of some terms, as multiples of the error of one dense bfloat16 product."""

    hops: Annotated[int, Column("hops")]
    bfloat16: Annotated[float, Column("sum in bfloat16", ".2f")]
    """Sum held and sent in bfloat16."""
    predicted: Annotated[float, Column("formula", ".2f")]
    """By the formula for bfloat16."""
    float32: Annotated[float, Column("sum in float32", ".2f")]
    """Sum held and sent in float32, and rounded once."""


def travelling(hops: int, size: int, wide: bool) -> Program:
    """Return the program of a sum of one product per hop, which is then copied to the output."""
    whole, parts = (0, size), tuple(range(0, size + 1, size // hops))
    lefts, rights = [f"I[0,{n}]" for n in range(hops)], [f"W[{n},0]" for n in range(hops)]
    terms = (
        Compute((lefts[n], rights[n]), "O.sum[0,0]", "forward", {"M": 0, "N": n, "K": 0})
        for n in range(hops)
    )
    return Program(
        format="primepar-program",
        version=1,
        ranks=1,
        programs=((*terms, Cut("O.sum[0,0]", ("O[0,0]",))),),
        initial=((*lefts, *rights),),
        final=(("O[0,0]",),),
        grid={"forward": {"M": 1, "N": hops, "K": 1}},
        phases={"forward": Signature(("I[M,N]", "W[N,K]"), "O.sum[M,K]", kernel="linear.forward")},
        tensors={
            "I": Tensor((whole, parts)),
            "W": Tensor((parts, whole)),
            "O.sum": Tensor((whole, whole), wide=wide),
            "O": Tensor((whole, whole), of="O.sum"),
        },
    )


def measure(hops: int, size: int) -> HopErrors:
    """Run the sum of one number of hops on two matrices, the same for all."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    exact = left.double() @ right.double()

    def error(output: torch.Tensor) -> float:
        return float((output.double() - exact).norm() / exact.norm())

    mesh, errors = Mesh(parse_sequence(""), dtype=torch.bfloat16), dict[bool, float]()
    for wide in (False, True):
        run = Executor(mesh, travelling(hops, size, wide))
        parts = torch.chunk(left, hops, 1), torch.chunk(right, hops)
        blocks = {f"I[0,{n}]": part.contiguous() for n, part in enumerate(parts[0])}
        blocks |= {f"W[{n},0]": part for n, part in enumerate(parts[1])}
        errors[wide] = round(error(run(blocks)["O[0,0]"]) / error(left @ right), 3)
    return HopErrors(hops, errors[False], round(sqrt((hops + 1) / 2), 3), errors[True])


def half_precision(size: int = 512) -> Iterator[Case]:
    if size < 1 or size % max(HOPS):
        raise ValueError(f"--size: expected a multiple of {max(HOPS)}, got {size}")
    for hops in HOPS:
        yield f"{hops} hops", partial(measure, hops, size)


if __name__ == "__main__":
    bench(half_precision)
