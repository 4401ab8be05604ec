"""What training in less memory saves and costs, counted from the programs of a step.

A step of a GPT-2 is lowered plainly, in micro-batches, with its optimizer in shards, with
activations computed again, and with all of these. Counted are, of the rank that has most: bytes of
all blocks at their peak, those of them that stay between steps, bytes that are sent, products that
are computed, and operations of products and attention. Nothing is run.

    python -m benchmarks.training_memory [--layers N] [--batch N] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primepar.models import ModelConfig
from primepar.operators import lower_step
from primepar.passes.liveness import sizes_of
from primepar.plan import Plan, preset_plan
from primepar.plan.cluster import load_cluster
from primepar.plan.pipeline_layout import micro_batches
from primepar.plan.simulator.step import simulate_step
from primepar.schedule.program import Compute, Program

PRESETS = ("megatron", "primepar", "data", "M2,megatron")
RANKS, HIDDEN, HEADS, CONTEXT, VOCABULARY, MICRO_BATCHES = 4, 256, 8, 128, 1024, 4
SIZE = 4
"""Bytes of an element: float32."""


class StepCounts(Struct, frozen=True):
    """The counts of a step; bytes and operations are those of the rank that has most."""

    plan: str
    way: str
    peak: int
    states: int
    """Bytes that stay between steps: parameters and moments."""
    sent: int
    products: int
    again: int
    """The products among them that were computed before."""
    operations: int


def ways(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield a plan in each way to take less memory, with names."""
    batches = micro_batches(MICRO_BATCHES)
    yield "plain", plan
    yield f"{MICRO_BATCHES} micro-batches", replace(plan, pipeline=batches)
    yield "sharded", replace(plan, sharded_optimizer=True)
    yield "selective", replace(plan, recompute="selective")
    yield "full", replace(plan, recompute="full")
    yield "all", replace(plan, pipeline=batches, sharded_optimizer=True, recompute="full")


def counts(name: str, way: str, plan: Plan, batch: int) -> StepCounts:
    """Count one step."""
    program = lower_step(plan, batch, CONTEXT)
    simulated = simulate_step(
        plan, batch, CONTEXT, load_cluster("h200-8"), "float32", program=program
    )
    computes = [node for node in program.programs[0] if isinstance(node, Compute) and node.phase]
    return StepCounts(
        name,
        way,
        int(max(simulated.peak)),
        SIZE * max(_held(program)),
        int(max(simulated.sent)),
        len(computes),
        sum(node.again for node in computes),
        int(max(simulated.operations)),
    )


def _held(program: Program) -> list[int]:
    """Return the elements of parameters and moments on every rank."""
    size = sizes_of(program)
    return [
        sum(size(name) or 0 for name in names if not name.startswith(("tokens", "targets")))
        for names in program.initial or ()
    ]


def main() -> None:
    """Count all steps and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4, help="layers of the model")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    model = ModelConfig.of(
        "gpt2", layers=given.layers, hidden=HIDDEN, heads=HEADS, context=CONTEXT,
        vocabulary=VOCABULARY,
    )  # fmt: skip
    rows = [
        counts(name, way, plan, given.batch)
        for name in PRESETS
        for way, plan in ways(preset_plan(name, model, RANKS, given.batch))
    ]
    if given.json:
        print(msgspec.json.encode(rows).decode())
        return
    print("plan         way                peak MB  states MB  sent MB  products   again  GFLOP")
    for row in rows:
        print(
            f"{row.plan:12} {row.way:16} {row.peak / 1e6:9.2f} {row.states / 1e6:10.2f}"
            f" {row.sent / 1e6:8.2f} {row.products:9} {row.again:7} {row.operations / 1e9:6.2f}"
        )


if __name__ == "__main__":
    main()
