"""The error of a bfloat16 product whose sum travels over several devices.

The product of two random matrices is a sum of s terms, one for each hop, as under PrimePar and the
stationary rings. The executor runs it on one process, since a message changes no bit of the sum.
Errors are relative, in the norm of all elements, against float64. They are divided by the error of
one dense bfloat16 product. Rounding a running sum to bfloat16 at every hop gives the formula
sqrt((s + 1) / 2): after term j the sum has j / s of its final variance, and each rounding adds an
error in proportion.

    python -m benchmarks.half_precision [--size N] [--json]
"""

from __future__ import annotations

import argparse
from math import sqrt

import msgspec
import torch
from msgspec import Struct

from primepar.distributed import Executor, Mesh
from primepar.partition import parse_sequence
from primepar.schedule.program import Compute, Cut, Program
from primepar.schedule.signature import Signature, Tensor

HOPS = (1, 2, 4, 8, 16)


class HopErrors(Struct, frozen=True):
    """Errors of a sum of some terms, as multiples of the error of one dense bfloat16 product."""

    hops: int
    bfloat16: float
    """Sum held and sent in bfloat16."""
    float32: float
    """Sum held and sent in float32, and rounded once."""
    predicted: float
    """By the formula for bfloat16."""


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


def measure(size: int) -> list[HopErrors]:
    """Run the sums of all numbers of hops on the same two matrices."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    exact = left.double() @ right.double()
    dense = _error(left @ right, exact)
    mesh, rows = Mesh(parse_sequence(""), dtype=torch.bfloat16), list[HopErrors]()
    for hops in HOPS:
        errors = dict[bool, float]()
        for wide in (False, True):
            run = Executor(mesh, travelling(hops, size, wide))
            parts = torch.chunk(left, hops, 1), torch.chunk(right, hops)
            blocks = {f"I[0,{n}]": part.contiguous() for n, part in enumerate(parts[0])}
            blocks |= {f"W[{n},0]": part for n, part in enumerate(parts[1])}
            output = run(blocks)["O[0,0]"]
            errors[wide] = round(_error(output, exact) / dense, 3)
        by_formula = round(sqrt((hops + 1) / 2), 3)
        rows.append(HopErrors(hops, errors[False], errors[True], by_formula))
    return rows


def _error(output: torch.Tensor, exact: torch.Tensor) -> float:
    return float((output.double() - exact).norm() / exact.norm())


def table(rows: list[HopErrors]) -> str:
    """Return the rows as text."""
    lines = ["hops   sum in bfloat16   formula   sum in float32"]
    lines += [
        f"{row.hops:4} {row.bfloat16:17.2f} {row.predicted:9.2f} {row.float32:16.2f}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=512, metavar="N", help="rows and columns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.size < 1 or options.size % max(HOPS):
        parser.error(f"--size: expected a multiple of {max(HOPS)}, got {options.size}")
    rows = measure(options.size)
    print(msgspec.json.encode(rows).decode() if options.json else table(rows))


if __name__ == "__main__":
    main()
