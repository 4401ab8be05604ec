"""What an h, 4h, h MLP and a whole block send and hold on each device under every ready plan.

One training step on 4, 8, 16 and 64 devices. Each linear operator runs on emulated devices and is
checked against one device; its elements sent are counted there, and stand beside the closed
formula. Redistribution between operators is counted from the programs that do it: inside the MLP
or block, and around it where its input and output are not where they are left. The sums of norms,
of the residual stream and of the loss are left out. The peak is that of the fullest linear operator
by itself, in units of what it would hold if every tensor were cut over all devices.

    python benchmarks/family_bytes.py [--rows M] [--hidden H] [--devices P ...] [--json]
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import Literal

import msgspec
from msgspec import Struct

from primepar.errors import PlanError, PrimeParError
from primepar.models import ModelConfig
from primepar.plan import PRESETS, Plan, edges, ready_plan
from primepar.reference import check
from primepar.reference.check import formula
from primepar.schedule import Linear

Part = Literal["mlp", "block"]
LINEARS: dict[Part, tuple[str, ...]] = {
    "mlp": ("fc1", "fc2"),
    "block": ("qkv", "proj", "fc1", "fc2"),
}
INSIDE: dict[Part, tuple[str, ...]] = {
    "mlp": ("fc1", "act", "fc2"),
    "block": ("norm1", "qkv", "attention", "proj", "add1", "norm2", "fc1", "act", "fc2", "add2"),
}


class FamilyRow(Struct, frozen=True):
    """Counts of one plan on one mesh: elements per device and step, on average over devices."""

    devices: int
    plan: str
    part: Part
    linear: float
    """Sent by the programs of the linear operators."""
    formula: float
    """The same by the primitives' own formulas."""
    inside: float
    """Sent between operators of the part."""
    around: float
    """Sent to bring the input of the part to it, and its gradient back."""
    peak: float
    """Most elements alive on a device during a linear operator, over its tensors' share."""


def measure(name: str, part: Part, rows: int, hidden: int, devices: int) -> FamilyRow:
    """Emulate the linear operators of a part under a ready plan. Raises `PlanError`."""
    model = ModelConfig.of(
        "gpt", layers=1, hidden=hidden, heads=min(hidden, 64), context=rows, vocabulary=hidden
    )
    plan = ready_plan(name, model, devices)
    sent, own, peaks = Fraction(0), Fraction(0), []
    for short in LINEARS[part]:
        operator = plan.operator(f"blocks.0.{short}")
        shape = Linear(M=rows, N=operator.N, K=operator.K)
        report = check(plan.sequence(operator.name), shape)
        if not report.equal:
            raise SystemExit(f"{name} on {devices} devices: {report.message}")
        sent += sum(map(Fraction, report.sent), Fraction(0)) / devices
        known = formula(plan.sequence(operator.name), shape)
        assert known is not None, "a ready plan without copies has one primitive an operator"
        own += known
        tensors = 2 * (shape.M * shape.N + shape.N * shape.K + shape.M * shape.K) / devices
        peaks.append(max(report.peak) / tensors)
    inside, around = (elements / devices for elements in redistributed(plan, part, rows))
    return FamilyRow(devices, name, part, float(sent), float(own), inside, around, max(peaks))


def redistributed(plan: Plan, part: Part, rows: int) -> tuple[int, int]:
    """Elements sent by all devices together inside a part, and around it."""
    names = {f"blocks.0.{short}" for short in INSIDE[part]}
    inside = around = 0
    for edge in edges(plan):
        within = (edge.producer in names) + (edge.consumer in names)
        moved = sum(edge.elements(rows))
        inside += moved if within == 2 else 0
        around += moved if within == 1 else 0
    return inside, around


def table(rows: list[FamilyRow], tokens: int, hidden: int) -> str:
    """The rows as text; elements over M h / p, the share of one activation of a device."""
    lines = [f"M={tokens} h={hidden}; elements sent per device in units of M h / p"]
    for part in LINEARS:
        lines += ["", f"{part}    plan           linear   formula  inside  around    total    peak"]
        for devices in sorted({row.devices for row in rows}):
            lines += [
                _line(row, tokens * hidden / devices)
                for row in rows
                if row.part == part and row.devices == devices
            ]
    return "\n".join(lines)


def _line(row: FamilyRow, unit: float) -> str:
    total = row.linear + row.inside + row.around
    return (
        f"p={row.devices:<4} {row.plan:12} {row.linear / unit:8.2f} "
        f"{row.formula / unit:9.2f} "
        f"{row.inside / unit:7.2f} {row.around / unit:7.2f} {total / unit:8.2f} {row.peak:7.2f}"
    )


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=256, metavar="M", help="tokens of a step")
    parser.add_argument("--hidden", type=int, default=128, metavar="H", help="features of a token")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 16, 64], metavar="P")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = []
    for part in LINEARS:
        for devices in options.devices:
            for name in PRESETS:
                try:
                    rows.append(measure(name, part, options.rows, options.hidden, devices))
                except PlanError:
                    continue
                except PrimeParError as error:
                    parser.error(str(error))
    text = msgspec.json.encode(rows).decode()
    print(text if options.json else table(rows, options.rows, options.hidden))


if __name__ == "__main__":
    main()
