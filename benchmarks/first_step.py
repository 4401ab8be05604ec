"""GPT-2 small under every preset: seconds from the plan to a proved program.

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
from primepar.plan import PRESETS, Plan, preset_plan
from primepar.schedule import Program
from primepar.verify import verify_program

HEADS = 16
"""GPT-2 small has 12, which 8 ranks do not divide."""
Made = TypeVar("Made")


def timed(work: Callable[[], Made]) -> tuple[Made, float]:
    """The result of some work, and its CPU seconds."""
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
    seconds = "".join(
        f"{seconds_of_part:10.2f}" for seconds_of_part in (lowering, passing, proving, taking)
    )
    count = sum(map(len, program.programs))
    return f"{name:16} {count:12,} {seconds}  {report.verdict}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    model = GPTConfig(
        layers=options.layers, hidden=768, heads=HEADS, context=1024, vocabulary=50257
    )
    print(f"{options.layers} layers on {options.ranks} ranks, CPU seconds")
    print("plan             instructions     lower    passes     prove   take over")
    for name in (*PRESETS, *(f"M2,{preset}" for preset in PRESETS)):
        try:
            plan = preset_plan(name, model, options.ranks)
        except PlanError:
            continue  # the method has no mesh of this many devices
        print(row(name, plan, model.context), flush=True)


if __name__ == "__main__":
    main()
