"""How many CPU seconds are there from a plan of GPT-2 small to a proved program, by preset?

Rank 0 lowers the program of a training step, applies the passes and proves the result; the other
ranks take it over. CPU seconds of each part, on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from time import process_time

import msgspec

from benchmarks.bench import BenchRow, Case, Cells, bench
from primepar.errors import PlanError
from primepar.models import GPTConfig
from primepar.operators import lower_step
from primepar.passes import apply
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.schedule import Program
from primepar.verify import verify_program

HEADS = 16
"""GPT-2 small has 12, which 8 ranks do not divide."""


class FirstStep(BenchRow, frozen=True):
    """CPU seconds of each part of the way to a proved step."""

    plan: str
    instructions: int
    seconds: tuple[float, float, float, float]
    verdict: str

    @property
    def cells(self) -> Cells:
        parts = zip(("lower", "passes", "prove", "take over"), self.seconds, strict=True)
        return {
            "plan": self.plan,
            "instructions": f"{self.instructions:,}",
            **{f"CPU s: {name}": f"{seconds:.2f}" for name, seconds in parts},
            "verdict": self.verdict,
        }


def measure(name: str, plan: Plan, positions: int) -> FirstStep:
    """Go the whole way once."""
    times = [process_time()]
    lowered = lower_step(plan, plan.row_cuts.smallest_batch(positions), positions, passes=())
    times.append(process_time())
    program = apply(lowered)
    times.append(process_time())
    verdict = verify_program(program).verdict
    times.append(process_time())
    text = msgspec.json.encode(program)
    encoding = process_time() - times[-1]
    msgspec.json.decode(text, type=Program)
    times.append(process_time() - encoding)
    lowering, passing, proving, taking = (b - a for a, b in pairwise(times))
    count = sum(map(len, program.programs))
    return FirstStep(name, count, (lowering, passing, proving, taking), verdict)


def first_step(ranks: int = 8, layers: int = 12) -> Iterator[Case]:
    model = GPTConfig(layers=layers, hidden=768, heads=HEADS, context=1024, vocabulary=50257)
    for name in (*PRESETS, *(f"M2,{preset}" for preset in PRESETS)):
        try:
            plan = preset_plan(name, model, ranks)
        except PlanError:
            continue  # the method has no mesh of this many devices
        yield name, partial(measure, name, plan, model.context)


if __name__ == "__main__":
    bench(first_step)
