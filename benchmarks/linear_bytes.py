"""What does one linear operator send and hold on each device, counted by the emulator?

One training step (forward, backward, gradient) of the first linear operator of an MLP, N = h and
K = 4h, with M rows, under the primitives of the library and a few sequences on 4, 8, 9 and 16
devices. Counted are the elements that a device sends, with all-reduces as rings, next to the closed
formula; the elements on the fullest device before forward; and the peak. Units are M N elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.partition import parse_sequence
from primepar.reference import check
from primepar.reference.check import formula
from primepar.schedule import Linear, lower
from primepar.schedule.operators import parse_block

SEQUENCES = (
    "M4", "N4", "K4", "M,K", "P2x2",
    "M8", "N8", "K8", "M,P2x2", "N,P2x2", "K,P2x2",
    "M9", "N9", "K9", "P3x3",
    "M16", "N16", "K16", "M4,K4", "M,K,P2x2", "P2x2,P2x2", "P4x4",
)  # fmt: skip


class SequenceCounts(BenchRow, frozen=True):
    """Counts of one sequence, in elements for each device."""

    shape: Linear
    devices: int
    sequence: str
    sent: float
    formula: float | None
    """By the primitive's closed formula; None for a sequence of several primitives."""
    initial: int
    """Elements on the most loaded device before forward."""
    peak: int
    """Peak of live elements on any device."""

    @property
    def title(self) -> str:
        return f"M={self.shape.M} N={self.shape.N} K={self.shape.K}, {self.devices} devices"

    @property
    def cells(self) -> Cells:
        unit = self.shape.M * self.shape.N
        return {
            "sequence": self.sequence,
            "sent": f"{self.sent / unit:.3f}",
            "formula": "-" if self.formula is None else f"{self.formula / unit:.3f}",
            "at the start": f"{self.initial / unit:.3f}",
            "peak": f"{self.peak / unit:.3f}",
        }


def measure(text: str, operator: Linear) -> SequenceCounts:
    """Emulate one training step. Raises `ShapeError` if the slices do not divide the shape."""
    sequence = parse_sequence(text)
    report = check(sequence, operator)
    if not report.equal:
        raise SystemExit(f"{text}: {report.message}")
    by_formula = formula(sequence, operator)
    initial = []
    for names in lower(sequence, operator).initial or ():
        blocks = [parse_block(name) for name in names]
        initial.append(sum(prod(operator.block_shape(block.tensor, sequence.grid))
                           for block in blocks if block))  # fmt: skip
    return SequenceCounts(
        operator, sequence.ranks, str(sequence), float(max(report.sent)),
        None if by_formula is None else float(by_formula), max(initial), max(report.peak),
    )  # fmt: skip


def linear_bytes(rows: int = 288, hidden: int = 144) -> Iterator[Case]:
    operator = Linear(M=rows, N=hidden, K=4 * hidden)
    for text in SEQUENCES:
        yield text, partial(measure, text, operator)


if __name__ == "__main__":
    bench(linear_bytes)
