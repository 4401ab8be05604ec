"""What do an h, 4h, h MLP and a whole block send and hold on each device under every preset?

One training step on 4, 8, 16 and 64 devices. Each linear operator runs on emulated devices and is
checked against one device. The elements sent are counted there and printed next to the closed
formula. Redistribution between operators is counted from its programs: inside the MLP or block, and
around it where the layouts of its input and output differ. The reductions of norms and of the loss
are left out. The peak is that of the fullest linear operator by itself, in units of what it would
hold if every tensor were sharded over all devices. Sent is in units of M h / p.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Literal

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.errors import PlanError
from primepar.models import ModelConfig
from primepar.plan import PRESETS, Plan, edges, preset_plan
from primepar.reference import check
from primepar.reference.check import formula
from primepar.schedule import Linear

Part = Literal["mlp", "block"]
INSIDE: dict[Part, tuple[str, ...]] = {
    "mlp": ("fc1", "act", "fc2"),
    "block": ("norm1", "qkv", "attention", "proj", "add1", "norm2", "fc1", "act", "fc2", "add2"),
}
LINEARS = ("qkv", "proj", "fc1", "fc2")


class FamilyRow(BenchRow, frozen=True):
    """Counts of one plan on one mesh: elements per device and step, mean over devices."""

    devices: int
    plan: str
    part: Part
    unit: float
    """A device's share of one activation."""
    linear: float
    """Sent by the programs of the linear operators."""
    formula: float
    """The same by the primitives' closed formulas."""
    inside: float
    """Sent between operators of the part."""
    around: float
    """Sent to redistribute the input of the part, and its gradient back."""
    peak: float
    """Peak of live elements on a device during a linear operator, over its tensors' share."""

    @property
    def title(self) -> str:
        return f"{self.part} on {self.devices} devices"

    @property
    def cells(self) -> Cells:
        sent = {
            "linear": self.linear, "formula": self.formula, "inside": self.inside,
            "around": self.around, "total": self.linear + self.inside + self.around,
        }  # fmt: skip
        units = {name: f"{elements / self.unit:.2f}" for name, elements in sent.items()}
        return {"plan": self.plan, **units, "peak": f"{self.peak:.2f}"}


def measure(name: str, plan: Plan, part: Part, rows: int, hidden: int, devices: int) -> FamilyRow:
    """Emulate the linear operators of a part under a preset."""
    sent, by_formula, peaks = Fraction(0), Fraction(0), []
    for short in (short for short in INSIDE[part] if short in LINEARS):
        operator = plan.operator(f"blocks.0.{short}")
        shape = Linear(M=rows, N=operator.N, K=operator.K)
        report = check(plan.sequence(operator.name), shape)
        if not report.equal:
            raise SystemExit(f"{name} on {devices} devices: {report.message}")
        sent += sum(map(Fraction, report.sent), Fraction(0)) / devices
        known = formula(plan.sequence(operator.name), shape)
        assert known is not None, "a preset without copies has one primitive an operator"
        by_formula += known
        tensors = 2 * (shape.M * shape.N + shape.N * shape.K + shape.M * shape.K) / devices
        peaks.append(max(report.peak) / tensors)
    names, moved = {f"blocks.0.{short}" for short in INSIDE[part]}, {1: 0, 2: 0, 0: 0}
    for edge in edges(plan):  # both ends within the part: inside; one: around
        moved[(edge.producer in names) + (edge.consumer in names)] += sum(edge.elements(rows))
    return FamilyRow(
        devices, name, part, rows * hidden / devices, float(sent), float(by_formula),
        moved[2] / devices, moved[1] / devices, max(peaks),
    )  # fmt: skip


def family_bytes(
    rows: int = 256, hidden: int = 128, devices: tuple[int, ...] = (4, 8, 16, 64)
) -> Iterator[Case]:
    model = ModelConfig.of(
        "gpt", layers=1, hidden=hidden, heads=min(hidden, 64), context=rows, vocabulary=hidden
    )
    for part in INSIDE:
        for count in devices:
            for name in PRESETS:
                try:
                    plan = preset_plan(name, model, count)
                except PlanError:
                    continue  # the preset has no mesh of this many devices
                yield (
                    f"{name}, {part} on {count}",
                    partial(measure, name, plan, part, rows, hidden, count),
                )


if __name__ == "__main__":
    bench(family_bytes)
