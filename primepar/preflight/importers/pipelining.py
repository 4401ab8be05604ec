"""Programs of pipeline schedules in CSV files, as `torch.distributed.pipelining` writes them.

A file has one line for each rank and one action in each field: `2F0` is the forward pass of stage 2
for micro-batch 0, `2B0` its backward pass, in two parts `2I0` (of the input) and `2W0` (of the
weights), `2SEND_F0` sends its output. The runtime of torch does them in order. It posts a message
at its action, waits for a receive right before the computation that needs it, and for sends at the
end. The blocks of the program:

    x.s[m]       input of stage s for micro-batch m; x.S, after the last stage, is the output
    dx.s[m]      its gradient; the loss makes that of the output, of x.S and target
    w.s[0]       weights of stage s
    dw.s[0]      their gradient, summed over micro-batches

A stage that computes micro-batch m reads the blocks of that micro-batch, wherever they came from.
So where messages arrive in another order than the schedule expects, a block has the data of another
micro-batch than its name states.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from primepar.errors import FormatError
from primepar.reading import read_bytes
from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Program, Wait
from primepar.schedule.signature import Signature

_ACTION = re.compile(
    r"(?P<stage>\d+)"
    r"(?:UNSHARD|RESHARD|REDUCE_GRAD|(?P<kind>(?:SEND|RECV)_[FB]|[FIBW])(?P<part>\d+))"
)


def csv_program(path: Path, defer_pp_recv: bool = False) -> Program:
    """Return the program of one training step by the schedule of a file.

    The file has computations alone, to which the installed torch adds the messages, with
    `defer_pp_recv` as late as it can, or all actions. Raises `FormatError` for a field that is no
    action, and for an order that torch refuses.
    """
    try:
        lines = read_bytes(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: expected a CSV file of a schedule, got {error}") from None
    rows = [list(_read(path, line, fields)) for line, fields in enumerate(csv.reader(lines), 1)]
    actions = [action for row in rows for action, _ in row]
    parts = [int(action["part"]) for action in actions if action["part"]]
    if not parts:
        raise FormatError(f"{path}: expected actions such as 0F0 in each line, got none")
    computes = all((action["kind"] or "")[-2:] in ("F", "I", "B", "W") for action in actions)
    micro_batches = range(1 + max(parts))
    stages = range(1 + max(int(action["stage"]) for action in actions))
    schedule = _scheduled(path, len(rows), stages, micro_batches, computes, defer_pp_recv)
    rank_of: Mapping[int, int] = schedule.stage_index_to_group_rank
    phases = {"loss": Signature((f"x.{len(stages)}[M]", "target[M]"), f"dx.{len(stages)}[M]")}
    for stage in stages:
        x, y, weights = f"x.{stage}[M]", f"x.{stage + 1}[M]", f"w.{stage}[0]"
        dx, dy = f"dx.{stage}[M]", f"dx.{stage + 1}[M]"
        phases[f"stage{stage}.forward"] = Signature((x, weights), y)
        phases[f"stage{stage}.backward"] = Signature((dy, y, weights), dx)
        phases[f"stage{stage}.gradient"] = Signature((x, dy, dx), f"dw.{stage}[R]")
    initial: list[list[str]] = [[] for _ in rows]
    final: list[list[str]] = [[] for _ in rows]
    for stage in stages:
        initial[rank_of[stage]].append(f"w.{stage}[0]")
        final[rank_of[stage]].append(f"dw.{stage}[0]")
    for m in micro_batches:
        initial[rank_of[0]].append(f"x.0[{m}]")
        final[rank_of[0]].append(f"dx.0[{m}]")
        initial[rank_of[stages[-1]]].append(f"target[{m}]")
        final[rank_of[stages[-1]]].append(f"x.{len(stages)}[{m}]")
    order: dict[int, list[Any]] = schedule.pipeline_order_with_comms
    return Program(
        format="primepar-program",
        version=1,
        ranks=len(rows),
        programs=tuple(
            tuple(_instructions(order[rank], {action[0]: place for action, place in row}, rank_of))
            for rank, row in enumerate(rows)
        ),
        phases=phases,
        grid={
            name: {"M": len(micro_batches)} | ({"R": 1} if name.endswith("gradient") else {})
            for name in phases
        },
        initial=tuple(map(tuple, initial)),
        final=tuple(map(tuple, final)),
    )


def _read(path: Path, line: int, fields: list[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the actions of a line, each with its place, `schedule.csv:2, field 5 (2F0)`."""
    for number, field in enumerate(map(str.strip, fields), 1):
        overlap = re.fullmatch(r"\(([^()]+)\)OVERLAP_F_B", field)
        for text in overlap[1].split(";") if overlap else [field] if field else []:
            action = _ACTION.fullmatch(text.strip())
            if action is None:
                raise FormatError(
                    f"{path}:{line}, field {number}: expected an action such as 2F0, 2SEND_F0, "
                    f"2UNSHARD or (0F1;3B0)OVERLAP_F_B, got {text.strip()!r}"
                )
            yield action, f"{path}:{line}, field {number} ({action[0]})"


def _scheduled(
    path: Path, ranks: int, stages: range, micro_batches: range, computes: bool, defers: bool
) -> Any:
    """The schedule that torch makes of a file, with all actions in order, and no stages."""
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    schedule = object.__new__(_PipelineScheduleRuntime)
    vars(schedule).update(
        pipeline_order={}, pp_group_size=ranks, _stages=[], _num_stages=len(stages),
        _n_microbatches=len(micro_batches), _defer_pp_recv=defers,
    )  # fmt: skip
    log = logging.getLogger("torch.distributed.pipelining.schedules")  # of the whole schedule
    was_disabled, log.disabled = log.disabled, True
    try:
        schedule._load_csv(str(path), "compute_only" if computes else "compute_comms")
    except (AssertionError, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        text = " ".join(str(error).split("\n\n")[0].split())
        raise FormatError(f"{path}: torch refuses this schedule: {text}") from None
    finally:
        log.disabled = was_disabled
    return schedule


def _instructions(
    order: Iterable[Any], places: Mapping[str, str], rank_of: Mapping[int, int]
) -> Iterator[Instruction]:
    """Yield what a rank does for its actions, each with the place in the file that it comes from.

    `rank_of` has the rank of each stage.
    """
    requests = 0
    receives: dict[str, Wait] = {}
    """Block -> what waits for it."""
    sends: list[Wait] = []
    for action in (part for whole in order for part in whole.sub_actions or (whole,)):
        stage, kind, m = action.stage_index, action.computation_type.value, action.microbatch_index
        source = places.get(str(action), str(action))
        x, y = f"x.{stage}[{m}]", f"x.{stage + 1}[{m}]"
        dx, dy = f"dx.{stage}[{m}]", f"dx.{stage + 1}[{m}]"
        if kind[1:] in ("END_F", "END_B", "ECV_F", "ECV_B"):
            peer = rank_of.get(stage + 1 if kind in ("SEND_F", "RECV_B") else stage - 1)
            if peer is None:
                continue  # before the first stage, and after the last one
            requests += 1
            wait = Wait(f"r{requests}", source=source)
            if kind.startswith("SEND"):
                block = y if kind == "SEND_F" else dx
                yield ISend(peer, block, request=wait.request, source=source)
                sends.append(wait)
            else:
                block = x if kind == "RECV_F" else dy
                yield IRecv(peer, block, request=wait.request, source=source)
                receives[block] = wait
        needed = receives.pop({"F": x, "B": dy, "I": dy}.get(kind, ""), None)
        if needed is not None:
            yield needed
        name, weights = f"stage{stage}", f"w.{stage}[0]"
        if kind == "F":
            yield Compute((x, weights), y, f"{name}.forward", {"M": m}, source=source)
            if stage + 1 not in rank_of:
                yield Compute((y, f"target[{m}]"), dy, "loss", {"M": m}, source=source)
        if kind in ("B", "I"):
            yield Compute((dy, y, weights), dx, f"{name}.backward", {"M": m}, source=source)
        if kind in ("B", "W"):
            cell = {"M": m, "R": 0}
            yield Compute((x, dy, dx), f"dw.{stage}[0]", f"{name}.gradient", cell, source=source)
    yield from sends[::-1]
