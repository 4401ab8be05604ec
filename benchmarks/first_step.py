"""GPT-2 small under every ready plan: seconds from the plan to a proved program.

Rank 0 lowers the program of a training step, applies the passes and proves the result; the other
ranks take it over. CPU seconds of each part, on one core.

    python benchmarks/first_step.py [--ranks 8] [--layers 12]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import TypeVar

import msgspec

from primepar.errors import PlanError
from primepar.models import GPTConfig
from primepar.operators import lower_step
from primepar.passes import apply
from primepar.plan import PRESETS, Plan, ready_plan
from primepar.schedule import Program
from primepar.verify import verify_program

HEADS = 16
"""GPT-2 small has 12, which 8 ranks do not divide."""
Made = TypeVar("Made")


def timed(work: Callable[[], Made]) -> tuple[Made, float]:
    """What some work makes, and its CPU seconds."""
    begin = process_time()
    made = work()
    return made, process_time() - begin


def row(name: str, plan: Plan, positions: int) -> str:
    """One plan's line of the table."""
    batch = plan.row_cuts.smallest_batch(positions)
    lowered, lowering = timed(lambda: lower_step(plan, batch, positions, passes=()))
    program, passing = timed(lambda: apply(lowered))
    report, proving = timed(lambda: verify_program(program))
    text = msgspec.json.encode(program)
    _, taking = timed(lambda: msgspec.json.decode(text, type=Program))
    seconds = "".join(f"{each:10.2f}" for each in (lowering, passing, proving, taking))
    count = sum(map(len, program.programs))
    return f"{name:16} {count:12,} {seconds}  {report.verdict}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    asked = parser.parse_args()
    model = GPTConfig(layers=asked.layers, hidden=768, heads=HEADS, context=1024, vocabulary=50257)
    print(f"{asked.layers} layers on {asked.ranks} ranks, CPU seconds")
    print("plan             instructions     lower    passes     prove   take over")
    for name in (*PRESETS, *(f"M2,{each}" for each in PRESETS)):
        try:
            plan = ready_plan(name, model, asked.ranks)
        except PlanError:
            continue  # not for so many devices
        print(row(name, plan, model.context), flush=True)


if __name__ == "__main__":
    main()
