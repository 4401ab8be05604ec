"""Schedules of torch, judged and run on gloo: `python tests/helpers/attack_pipelining.py`.

63 files: stock schedules, and such in which actions moved. Every one runs one step of a linear
model in integers, on processes of one rank each. What is proved must end with the gradients of the
same step without a pipeline, in every bit; what is refuted must hang, raise or end with others.
Exit code 1 if one does not.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

from primepar.errors import FormatError
from primepar.preflight.importers.pipelining import csv_program
from primepar.verify.program import verify_program

SIZES = ((2, 4, 4), (2, 4, 6), (4, 8, 8))
"""(ranks, stages, micro-batches)."""
SEVERAL = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
"""Schedules with any number of stages on a rank; those of a V have two."""
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
NAMES = (*SEVERAL, *V_SHAPED)
COUNT = 63
WIDTH, ROWS, SECONDS = 3, 2, 6
"""Columns of a layer, rows of a micro-batch, and seconds after which a message is given up."""
WORST = ("hangs", "raises", "differs", "equal")
Rows = list[list[str]]


class ScheduleCase(NamedTuple):
    """A schedule, its sizes, and its actions rank by rank."""

    name: str
    ranks: int
    stages: int
    micro_batches: int
    rows: Rows

    def file(self, folder: Path) -> Path:
        """Write the file of a schedule."""
        path = folder / "schedule.csv"
        path.write_text("\n".join(map(",".join, self.rows)) + "\n")
        return path


def actions_of(name: str, ranks: int, stages: int, micro_batches: int, **options: bool) -> Rows:
    """The actions of every rank of a stock schedule, messages included."""
    kind: Any = getattr(schedules, f"Schedule{name}")
    given = [
        SimpleNamespace(stage_index=stage, num_stages=stages, group_rank=0, group_size=ranks,
                        is_first=stage == 0, is_last=stage == stages - 1, submod=None,
                        stage_index_to_group_rank={}, has_backward=True)
        for stage in range(0, stages, ranks)
    ]  # fmt: skip
    made = kind(given, micro_batches, loss_fn=loss, **options)
    return [list(map(str, made.pipeline_order_with_comms[rank])) for rank in range(ranks)]


def stock() -> Iterator[ScheduleCase]:
    """Yield schedules as the installed torch makes them."""
    for name in NAMES:
        sizes = SIZES + (((2, 6, 4), (3, 9, 6)) if name in SEVERAL else ((3, 6, 7),))
        for size in sizes:
            yield ScheduleCase(name, *size, actions_of(name, *size))
            rows = actions_of(name, *size, defer_pp_recv=True)
            yield ScheduleCase(f"{name} deferred", *size, rows)


def altered(seed: int) -> ScheduleCase:
    """A schedule in which one message of one rank is earlier or later, so that all stay."""
    chance = random.Random(seed)
    name = chance.choice(NAMES)
    rows = actions_of(name, 2, 4, 4)
    row = chance.choice(rows)
    messages = [place for place, action in enumerate(row) if "SEND" in action or "RECV" in action]
    place = chance.choice(messages)
    moved = row.pop(place)
    row.insert(chance.randint(max(0, place - 6), min(len(row), place + 6)), moved)
    if chance.random() < 0.4:  # Exchange two messages of one kind.
        kind = chance.choice(("SEND_F", "RECV_F", "SEND_B", "RECV_B"))
        places = [place for place, action in enumerate(row) if kind in action]
        first, second = chance.sample(places, 2)
        row[first], row[second] = row[second], row[first]
    return ScheduleCase(f"{name} #{seed}", 2, 4, 4, rows)


def cases(folder: Path) -> list[ScheduleCase]:
    """All stock schedules, then altered ones that torch loads, up to the count."""
    result, seed = list(stock()), 0
    while len(result) < COUNT:
        case = altered(seed)
        seed += 1
        try:
            csv_program(case.file(folder))
        except FormatError:
            continue
        result.append(case)
    return result


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


def step(case: ScheduleCase, rank: int, folder: Path) -> str:
    """Run one rank; returns how it ended."""
    batch = integers(100, ROWS * case.micro_batches, WIDTH)
    target = integers(101, ROWS * case.micro_batches, WIDTH)
    dense, model = layers(case.stages), layers(case.stages)
    torch.autograd.backward(loss(torch.nn.Sequential(*dense)(batch), target))
    store = f"file://{folder / 'store'}"
    wait = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store, rank=rank, world_size=case.ranks, timeout=wait)
    mine = [stage for stage in range(case.stages) if f"{stage}F0" in ",".join(case.rows[rank])]
    try:
        stages = [
            PipelineStage(model[stage], stage, case.stages, torch.device("cpu")) for stage in mine
        ]
        kind: Any = schedules._PipelineScheduleRuntime
        schedule = kind(stages, case.micro_batches, loss_fn=loss, scale_grads=False)
        schedule._load_csv(str(folder / "schedule.csv"), format="compute_comms")
        schedule.step(*([batch] if 0 in mine else []), target=target)
    except RuntimeError as error:
        return "hangs" if "imed out" in str(error) or "closed" in str(error) else "raises"
    except Exception:
        return "raises"
    equal = (torch.equal(_grad(model[stage]), _grad(dense[stage])) for stage in mine)
    return "equal" if all(equal) else "differs"


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
    print(f"{'schedule':<30} {'ranks':>5} {'stages':>6} {'micro-batches':>13}  verdict  on gloo")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder):
            report = verify_program(csv_program(case.file(folder)))
            ended = run(case, folder)
            agree = (report.verdict == "proved") == (ended == "equal")
            wrong += not agree
            names = [each.name for each in report.properties if each.verdict == "refuted"]
            print(f"{case.name:<30} {case.ranks:>5} {case.stages:>6} {case.micro_batches:>13}  "
                  f"{report.verdict:<8} {ended} {', '.join(names)}"
                  f"{'' if agree else '  WRONG'}", flush=True)  # fmt: skip
    print(f"verdicts that the run contradicts: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
