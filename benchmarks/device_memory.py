"""What does a training step under a limit of device memory move, hold and cost?

The states are parameters, gradients and two moments. Peak and moved bytes are those of the proved
program. The simulated time is of an H200 with its host link, of `clusters/h200.toml`. Measured is
the CPU time of this process, in which a copy between the two memories is a copy in one memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import torch
from msgspec.structs import replace

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.distributed import Mesh
from primepar.distributed.runtime.step_programs import StepProgram, update
from primepar.distributed.runtime.training_state import TrainingState
from primepar.models import GPTConfig, ModelConfig
from primepar.models.dropout import Draw
from primepar.operators import StepInputs, StepSettings, lower_step
from primepar.partition import parse_sequence
from primepar.passes import PASSES
from primepar.passes.liveness import peaks
from primepar.passes.offload import (
    largest_state,
    least_limit,
    moved_elements,
    offload,
    state_chunks,
    with_copies,
)
from primepar.pictures.methods import residency_svg
from primepar.plan.cluster import load_cluster
from primepar.plan.presets import uniform_plan
from primepar.plan.simulator.step import simulate_step
from primepar.schedule.program import Program
from primepar.verify import verify_program

MODEL = GPTConfig(layers=4, hidden=192, heads=4, context=128, vocabulary=256)
PICTURED = GPTConfig(layers=2, hidden=32, heads=2, context=8, vocabulary=64)
BYTES, STATES, STEPS = 4, 4, 5
SHARES = (None, Fraction(1), Fraction(1, 2), Fraction(1, 3))


class LimitRow(BenchRow, frozen=True, kw_only=True):
    """One limit: bytes, and seconds of a step."""

    states: int
    limit: int | None
    peak: int
    moved: int
    simulated: float
    measured: float
    loss: float

    @property
    def title(self) -> str:
        return f"a GPT in float32, states {self.states / 2**20:.2f} MiB"

    @property
    def cells(self) -> Cells:
        limit = self.limit
        return {
            "limit MiB": "none" if limit is None else f"{limit / 2**20:.2f}",
            "of states": "" if limit is None else f"{limit / self.states:.2f}",
            "peak MiB": f"{self.peak / 2**20:.2f}",
            "moved MiB": f"{self.moved / 2**20:.2f}",
            "simulated": f"{self.simulated:.2f}x",
            "CPU time": f"{self.measured:.2f}x",
            "loss": f"{self.loss:.6f}",
        }


def step_program(model: ModelConfig, batch: int, share: Fraction | None) -> Program:
    """The step on one device; a limit is a share of the states' size, or the least if larger."""
    plan = uniform_plan(model, parse_sequence(""))
    if share is None:
        return lower_step(plan, batch, model.context)
    passes = [name for name in PASSES if name != "overlap"]
    program = with_copies(lower_step(plan, batch, model.context, passes=passes))
    return offload(program, max(least_limit(program), int(STATES * model.parameters * share)))


def measure(model: ModelConfig, batch: int, share: Fraction | None) -> LimitRow:
    """Prove, simulate and run the step of one limit."""
    program, plan = step_program(model, batch, share), uniform_plan(model, parse_sequence(""))
    if verify_program(program).verdict != "proved":
        raise SystemExit(f"limit {share}: expected a program that is proved")
    limit = None if program.memory is None else (program.memory.device or 0) * BYTES
    cluster = load_cluster("h200-8")
    seconds = simulate_step(plan, batch, model.context, cluster, "float32", program=program).seconds
    measured, loss = _run(model, batch, program, limit)
    return LimitRow(
        states=STATES * model.parameters * BYTES, limit=limit,
        peak=max(peaks(program)) * BYTES, moved=max(moved_elements(program)) * BYTES,
        simulated=float(seconds), measured=measured, loss=loss,
    )  # fmt: skip


def _run(
    model: ModelConfig, batch: int, program: Program, limit: int | None
) -> tuple[float, float]:
    """CPU seconds of a step, the least of some, and the last loss."""
    plan, sequence = uniform_plan(model, parse_sequence("")), parse_sequence("")
    mesh = Mesh(sequence, device_memory=limit)
    state, least, loss = TrainingState(plan, mesh), float("inf"), 0.0
    run = StepProgram(program, mesh, StepSettings(model, batch, model.context, None))
    for step in range(1, STEPS + 1):
        generator = torch.Generator().manual_seed(step)
        shape = (2, batch, model.context)
        tokens, targets = torch.randint(0, model.vocabulary, shape, generator=generator)
        begin = time.process_time()
        loss, _ = update(run, state, tokens, targets, StepInputs(Draw(0, step), 1e-3, step))
        least = min(least, time.process_time() - begin)
    return least, loss


def drawn() -> str:
    """The chunks of a small step at a third of its states."""
    program = step_program(PICTURED, 2, Fraction(1, 3))
    whole = step_program(PICTURED, 2, None)
    return residency_svg(program, 0, state_chunks(whole, largest_state(whole))[0])


def limits(batch: int) -> list[LimitRow]:
    """Measure all limits; times become ratios to the first row, which has none."""
    first, *others = (measure(MODEL, batch, share) for share in SHARES)
    return [
        replace(row, simulated=row.simulated / first.simulated,
                measured=row.measured / first.measured)
        for row in (first, *others)
    ]  # fmt: skip


def device_memory(batch: int = 1) -> Iterator[Case]:
    yield "all limits", partial(limits, batch)


if __name__ == "__main__":
    bench(device_memory, pictures=lambda run: {"chunks.svg": drawn()})
