"""Programs of the schedules of `torch.distributed.pipelining`.

A schedule is a class of torch, or a CSV file of actions as torch writes it. The class decides the
order; the runtime of the installed version makes the messages of it. Both run here, without
processes: see `stage_recorder`.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primepar.errors import FormatError, MethodError, nearest
from primepar.preflight.importers.pipeline_names import PipelineNames
from primepar.reading import read_bytes
from primepar.schedule.program import Instruction, Program


def schedule_names() -> tuple[str, ...]:
    """The schedules of the installed torch, `1F1B`, `GPipe`, ..., without its base classes."""
    from torch.distributed.pipelining import schedules

    names = (name.removeprefix("Schedule") for name in schedules.__all__)
    return tuple(name for name in names if not name.startswith(("Pipeline", "get_")))


def pipelining_program(
    schedule: str | type,
    ranks: int,
    micro_batches: int,
    *,
    stages: int | None = None,
    trains: bool = True,
    replicas: int = 1,
    sharded: bool = False,
    load: Callable[[Any], None] | None = None,
    places: Sequence[Mapping[str, str]] = (),
    **options: Any,
) -> Program:
    """Return the program of one step of a pipeline schedule.

    `ranks` are those of one pipeline. `stages` are those of the model: by default one on each rank,
    or two where the schedule has several. With `replicas` every rank has that many copies, which
    average the gradients in the last backward pass (DDP), or gather weights and scatter gradients
    if `sharded` (FSDP). `options` go to the class (`defer_pp_recv=True`); `load` is called with the
    schedule before its step. `places` has the place of each action in a file, for every rank.
    Raises `MethodError` where torch refuses the sizes or the order.
    """
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    kind = _schedule_class(schedule) if isinstance(schedule, str) else schedule
    is_single = issubclass(kind, PipelineScheduleSingle)
    stages = stages or ranks * (1 if is_single else 2)
    if stages % ranks or (is_single and stages != ranks):
        wanted = f"stages={ranks}, one on every rank" if is_single else f"a multiple of {ranks}"
        raise MethodError(f"{kind.__name__}: expected {wanted}, got stages={stages}")
    turns = tuple(stage % ranks for stage in range(stages))
    names = PipelineNames(turns, ranks, micro_batches, replicas, sharded, trains)
    made = _ScheduleStep(kind, is_single, names, options, load, places)
    mapping = made.stage_ranks()
    made = replace(
        made, names=PipelineNames(mapping, ranks, micro_batches, replicas, sharded, trains)
    )
    return made.names.program(
        [made.rank(position, replica) for position in range(ranks) for replica in range(replicas)]
    )


def _schedule_class(name: str) -> type:
    from torch.distributed.pipelining import schedules

    known = {known.lower(): known for known in schedule_names()}
    if name.lower() not in known:
        near = nearest(name, known.values()) or f": write one of {', '.join(known.values())}"
        raise MethodError(
            f"expected a schedule of the installed torch.distributed.pipelining, got {name!r}{near}"
        )
    found_class: type = getattr(schedules, f"Schedule{known[name.lower()]}")
    return found_class


@dataclass(frozen=True)
class _ScheduleStep:
    """How the schedule of every rank is made and run."""

    kind: type
    is_single: bool
    names: PipelineNames
    options: dict[str, Any]
    load: Callable[[Any], None] | None
    places: Sequence[Mapping[str, str]]

    def _recorder(self, position: int, replica: int) -> Any:
        from primepar.preflight.importers.rank_recorder import PipelineRecorder

        places = self.places[position] if self.places else {}
        return PipelineRecorder(self.names, position, replica, places)

    def _schedule(self, recorder: Any) -> Any:
        from primepar.preflight.importers.stage_recorder import RecordedStage

        stages = [
            RecordedStage(recorder, stage, gathers=self.is_single)
            for stage, position in enumerate(self.names.stage_ranks)
            if position == recorder.position
        ]
        loss = stages[-1].loss if self.names.trains else None
        given = stages[0] if self.is_single else stages
        with _refusals(f"{self.kind.__name__}"):
            schedule = self.kind(given, self.names.micro_batches, loss_fn=loss, **self.options)
            if self.load is not None:
                self.load(schedule)
        return schedule

    def stage_ranks(self) -> tuple[int, ...]:
        """The position of every stage, as the schedule has it."""
        schedule = self._schedule(self._recorder(0, 0))
        mapping = getattr(schedule, "stage_index_to_group_rank", None)
        return (
            self.names.stage_ranks
            if mapping is None
            else tuple(mapping[stage] for stage in range(self.names.stages))
        )

    def rank(self, position: int, replica: int) -> list[Instruction]:
        """The instructions of one rank."""
        from primepar.preflight.importers.rank_recorder import communication_by

        recorder = self._recorder(position, replica)
        schedule = self._schedule(recorder)
        # What is sent once to learn shapes is not part of a step.
        schedule._initialize_stage = schedule._initialize_stages = lambda *_: None
        count = self.names.micro_batches
        targets = [f"target[{replica * count + m}]" for m in range(count)]
        with communication_by(recorder), _refusals(f"{self.kind.__name__}, rank {position}"):
            schedule._step_microbatches(
                [()] * count, [{}] * count, targets if self.names.trains else None
            )
        return list(recorder.grouped())


@contextmanager
def _refusals(where: str) -> Iterator[None]:
    """Make one line of what torch raises, and keep its log of the whole schedule quiet."""
    log = logging.getLogger("torch.distributed.pipelining.schedules")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        text = " ".join(str(error).split("\n\n")[0].split())
        raise MethodError(f"{where}: torch refuses this schedule: {text}") from None
    finally:
        log.disabled = was_disabled


_ACTION = re.compile(
    r"(?P<stage>\d+)"
    r"(?:UNSHARD|RESHARD|REDUCE_GRAD|(?P<kind>(?:SEND|RECV)_[FB]|[FIBW])(?P<part>\d+))"
)


def csv_program(path: Path, **options: Any) -> Program:
    """Return the program of a schedule in a CSV file: one line per rank, one action per field.

    The file has computations alone, to which the installed torch adds the messages, or all actions:
    `2F0`, `2SEND_F0`, `(0F1;3B0)OVERLAP_F_B`. `options` are those of `pipelining_program`, and
    `defer_pp_recv`. Raises `FormatError` for a field that is no action, and for an order that torch
    refuses.
    """
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    try:
        lines = read_bytes(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: expected a CSV file of a schedule, got {error}") from None
    rows = [list(_actions(path, line, fields)) for line, fields in enumerate(csv.reader(lines), 1)]
    actions = [action for row in rows for action, _ in row]
    parts = [int(action["part"]) for action in actions if action["part"]]
    if not parts:
        raise FormatError(f"{path}: expected actions such as 0F0 in each line, got none")
    computes = all((action["kind"] or "")[-2:] in ("F", "I", "B", "W") for action in actions)
    form = "compute_only" if computes else "compute_comms"
    try:
        return pipelining_program(
            _PipelineScheduleRuntime,
            len(lines),
            1 + max(parts),
            stages=1 + max(int(action["stage"]) for action in actions),
            places=[{action[0]: place for action, place in row} for row in rows],
            load=lambda schedule: schedule._load_csv(str(path), form),
            **options,
        )
    except MethodError as error:
        raise FormatError(f"{path}: {error}") from None


def _actions(path: Path, line: int, fields: list[str]) -> Iterator[tuple[re.Match[str], str]]:
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
