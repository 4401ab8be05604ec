"""Schedules of torch, judged and run on gloo: `python tests/helpers/attack_pipelining.py`.

Every schedule runs one step of a linear model in integers, on processes of one rank each. What is
proved must end with the gradients of the same step without a pipeline, in every bit; what is
refuted must hang, raise or end with others. Exit code 1 if one does not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pipelining_cases import ScheduleCase, cases
from torch.distributed.pipelining import PipelineStage, schedules

from primepar.verify.program import verify_program

WIDTH, ROWS, SECONDS = 3, 2, 6
"""Columns of a layer, rows of a micro-batch, and seconds after which a message is given up."""
WORST = ("hangs", "raises", "differs", "equal")


def integers(seed: int, *shape: int) -> torch.Tensor:
    """Small integers as float64, whose sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).double()


def layers(stages: int) -> list[torch.nn.Linear]:
    """The stages of the model."""
    result = []
    for stage in range(stages):
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        layer.weight.data = integers(stage, WIDTH, WIDTH)
        result.append(layer)
    return result


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A sum, so that the sum over micro-batches is that of the batch."""
    return (output * target).sum()


def schedule_of(case: ScheduleCase, rank: int, folder: Path, model: list[torch.nn.Linear]) -> Any:
    """The schedule of one rank, with real stages."""
    kind = getattr(schedules, f"Schedule{case.name}", schedules._PipelineScheduleRuntime)
    v_shaped = case.name.startswith(("ZBV", "DualPipeV"))
    turns = [divmod(stage, case.ranks) for stage in range(case.stages)]
    ranks = [case.ranks - 1 - place if v_shaped and turn % 2 else place for turn, place in turns]
    stages = [
        PipelineStage(model[stage], stage, case.stages, torch.device("cpu"))
        for stage in range(case.stages)
        if ranks[stage] == rank
    ]
    given = stages[0] if issubclass(kind, schedules.PipelineScheduleSingle) else stages
    made = kind(given, case.micro_batches, loss_fn=loss, scale_grads=False, **case.options)
    if case.text:
        made._load_csv(str(folder / "schedule.csv"), format="compute_comms")
    return made


def step(case: ScheduleCase, rank: int, folder: Path) -> str:
    """Run one rank; returns how it ended."""
    batch = integers(100, ROWS * case.micro_batches, WIDTH)
    target = integers(101, ROWS * case.micro_batches, WIDTH)
    dense, model = layers(case.stages), layers(case.stages)
    torch.autograd.backward(loss(torch.nn.Sequential(*dense)(batch), target))
    store = f"file://{folder / 'store'}"
    wait = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store, rank=rank, world_size=case.ranks, timeout=wait)
    try:
        schedule = schedule_of(case, rank, folder, model)
        schedule.step(*([batch] if 0 in _own(schedule) else []), target=target)
    except RuntimeError as error:
        return "hangs" if "imed out" in str(error) or "closed" in str(error) else "raises"
    except Exception:
        return "raises"
    equal = (torch.equal(_grad(model[s]), _grad(dense[s])) for s in _own(schedule))
    return "equal" if all(equal) else "differs"


def _own(schedule: Any) -> list[int]:
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    return [stage.stage_index for stage in stages]


def _grad(layer: torch.nn.Linear) -> torch.Tensor:
    return torch.zeros(()) if layer.weight.grad is None else layer.weight.grad


def run(case: ScheduleCase, folder: Path) -> str:
    """Run all ranks, each in a process of its own; returns the worst end of one."""
    (folder / "store").unlink(missing_ok=True)
    children = []
    for rank in range(case.ranks):
        child = os.fork()
        if not child:
            result = "raises"
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                result = step(case, rank, folder)
            finally:
                os._exit(WORST.index(result))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return WORST[min(code if code >= 0 else 1 for code in codes)]


def main() -> int:
    """Print the table; 1 if a verdict and its run disagree."""
    wrong = 0
    print(f"{'schedule':<24} {'ranks':>5} {'stages':>6} {'micro-batches':>13}  {'options':<18} "
          f"{'verdict':<8} on gloo")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder):
            program = case.program(folder)
            report = verify_program(program)
            ended = run(case, folder)
            agree = (report.verdict == "proved") == (ended == "equal")
            wrong += not agree
            names = [each.name for each in report.properties if each.verdict == "refuted"]
            print(f"{case.label} {report.verdict:<8} {ended} {', '.join(names)}"
                  f"{'' if agree else '  WRONG'}", flush=True)  # fmt: skip
    print(f"verdicts that the run contradicts: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
