"""What does training in less memory save and cost, counted from the programs of a step?

A step of a GPT-2 is lowered plainly, in micro-batches, with its optimizer in shards, with
activations computed again, and with all of these. Counted are, of the rank that has most: bytes of
all blocks at their peak, those of them that stay between steps, bytes that are sent, products that
are computed, and operations of products and attention. Nothing is run.

    python -m benchmarks.training_memory [--layers N] [--batch N] [--json]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Column, bench
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


class StepCounts(BenchRow, frozen=True):
    """The counts of a step; bytes and operations are those of the rank that has most."""

    plan: Annotated[str, Column("plan")]
    way: Annotated[str, Column("way")]
    peak: Annotated[int, Column("peak MB", ".2f", 1e-06)]
    states: Annotated[int, Column("states MB", ".2f", 1e-06)]
    """Bytes that stay between steps: parameters and moments."""
    sent: Annotated[int, Column("sent MB", ".2f", 1e-06)]
    products: Annotated[int, Column("products")]
    again: Annotated[int, Column("again")]
    """The products among them that were computed before."""
    operations: Annotated[int, Column("GFLOP", ".2f", 1e-09)]


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


def training_memory(layers: int = 4, batch: int = 16) -> Iterator[Case]:
    model = ModelConfig.of(
        "gpt2", layers=layers, hidden=HIDDEN, heads=HEADS, context=CONTEXT, vocabulary=VOCABULARY
    )
    for name in PRESETS:
        for way, plan in ways(preset_plan(name, model, RANKS, batch)):
            yield f"{name}, {way}", partial(counts, name, way, plan, batch)


if __name__ == "__main__":
    bench(training_memory)
