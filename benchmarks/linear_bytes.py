"""What one linear operator sends and holds on each device, counted by the emulator.

One training step (forward, backward, gradient) of the first linear operator of an MLP, N = h and
K = 4h, with M rows, under the primitives of the library and a few sequences on 4, 8, 9 and 16
devices. Counted are the elements that leave a device, an all-reduce as a ring, beside the closed
formula; the elements on the fullest device before forward; and the most at any moment.

    python benchmarks/linear_bytes.py [--rows M] [--hidden H] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from primepar.errors import ShapeError
from primepar.partition import parse_sequence
from primepar.reference import check
from primepar.reference.check import formula
from primepar.schedule import Linear, lower
from primepar.schedule.operators import parse_block

SEQUENCES = {
    4: ("M4", "N4", "K4", "M,K", "P2x2"),
    8: ("M8", "N8", "K8", "M,P2x2", "N,P2x2", "K,P2x2"),
    9: ("M9", "N9", "K9", "P3x3"),
    16: ("M16", "N16", "K16", "M4,K4", "M,K,P2x2", "P2x2,P2x2", "P4x4"),
}


class SequenceCounts(Struct, frozen=True):
    """Counts of one sequence, in elements for each device."""

    devices: int
    sequence: str
    sent: float
    formula: float | None
    """By the primitive's own formula; None for a sequence of several."""
    initial: int
    """Elements on the most loaded device before forward."""
    peak: int
    """Most elements alive at once on any device."""


def measure(text: str, operator: Linear) -> SequenceCounts:
    """Emulate one training step. Raises `ShapeError` if the slices do not divide the shape."""
    sequence = parse_sequence(text)
    report = check(sequence, operator)
    if not report.equal:
        raise SystemExit(f"{text}: {report.message}")
    own = formula(sequence, operator)
    return SequenceCounts(
        sequence.ranks,
        str(sequence),
        float(max(report.sent)),
        None if own is None else float(own),
        max(initial(text, operator)),
        max(report.peak),
    )


def initial(text: str, operator: Linear) -> Iterator[int]:
    """Elements on every device before forward."""
    sequence = parse_sequence(text)
    program = lower(sequence, operator)
    for blocks in program.initial or ():
        sizes = 0
        for name in blocks:
            block = parse_block(name)
            assert block is not None
            rows, columns = operator.block_shape(block.tensor, sequence.grid)
            sizes += rows * columns
        yield sizes


def table(rows: list[SequenceCounts], operator: Linear) -> str:
    """The rows as text, one paragraph for each number of devices; elements over M * h."""
    unit = operator.M * operator.N
    lines = [
        f"M={operator.M} N={operator.N} K={operator.K}; elements per device in units of "
        f"M * N = {unit}",
        "",
        "devices  sequence      sent   formula   at the start    peak",
    ]
    for place, row in enumerate(rows):
        if place and row.devices != rows[place - 1].devices:
            lines.append("")
        own = "-" if row.formula is None else f"{row.formula / unit:.3f}"
        lines.append(
            f"{row.devices:7}  {row.sequence:10} {row.sent / unit:7.3f} {own:>9} "
            f"{row.initial / unit:14.3f} {row.peak / unit:7.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=288, metavar="M", help="rows of the input")
    parser.add_argument("--hidden", type=int, default=144, metavar="H", help="its columns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    operator = Linear(M=options.rows, N=options.hidden, K=4 * options.hidden)
    try:
        rows = [measure(text, operator) for texts in SEQUENCES.values() for text in texts]
    except ShapeError as error:
        parser.error(str(error))
    print(msgspec.json.encode(rows).decode() if options.json else table(rows, operator))


if __name__ == "__main__":
    main()
