"""75 schedules of `torch.distributed.pipelining`: stock ones, and files in which actions moved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from primepar.errors import FormatError
from primepar.preflight.importers.pipelining import csv_program, pipelining_program
from primepar.schedule import Program

SINGLE_SIZES = ((2, 2), (2, 5), (3, 3), (3, 7), (4, 4), (4, 8))
"""(ranks, micro-batches)."""
STAGED_SIZES = ((2, 4, 4), (2, 4, 6), (4, 8, 8))
"""(ranks, stages, micro-batches)."""
SEVERAL = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
"""Schedules with any number of stages on a rank; those of a V have two."""
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
NAMES = ("GPipe", "1F1B", *SEVERAL, *V_SHAPED)
COUNT = 75


class ScheduleCase(NamedTuple):
    """A schedule and its sizes; of a file the text, of a class its options."""

    name: str
    ranks: int
    stages: int
    micro_batches: int
    options: dict[str, Any]
    text: str = ""

    @property
    def label(self) -> str:
        """One line of a table."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        sizes = f"{self.ranks:>5} {self.stages:>6} {self.micro_batches:>13}"
        return f"{self.name:<24} {sizes}  {options:<18}"

    def program(self, folder: Path) -> Program:
        """Its program; a file is written into the folder."""
        if self.text:
            return csv_program(self.file(folder))
        return pipelining_program(
            self.name, self.ranks, self.micro_batches, stages=self.stages, **self.options
        )

    def file(self, folder: Path) -> Path:
        """Write the file of a schedule."""
        path = folder / "schedule.csv"
        path.write_text(self.text)
        return path


def stock() -> Iterator[ScheduleCase]:
    """Yield schedules as the installed torch makes them."""
    for name in ("GPipe", "1F1B"):
        yield from (ScheduleCase(name, ranks, ranks, m, {}) for ranks, m in SINGLE_SIZES)
    for name in (*SEVERAL, *V_SHAPED):
        sizes = STAGED_SIZES + (((2, 6, 4), (3, 9, 6)) if name in SEVERAL else ((3, 6, 7),))
        for options in ({}, {"defer_pp_recv": True}):
            yield from (ScheduleCase(name, *size, options) for size in sizes)


def actions_of(name: str, ranks: int, stages: int, micro_batches: int) -> list[list[str]]:
    """The actions of every rank of a stock schedule, messages included."""
    made: list[Any] = []
    pipelining_program(name, ranks, micro_batches, stages=stages, load=made.append)
    return [list(map(str, made[0].pipeline_order_with_comms[rank])) for rank in range(ranks)]


def altered(seed: int, folder: Path) -> ScheduleCase | None:
    """A file in which one action of one rank is earlier or later; None if torch refuses it.

    A schedule is altered so that all of its actions stay, mostly its messages.
    """
    chance = random.Random(seed)
    name = chance.choice((*SEVERAL, *V_SHAPED))
    ranks, stages, micro_batches = 2, 4, 4
    rows = actions_of(name, ranks, stages, micro_batches)
    row = chance.choice(rows)
    messages = [place for place, action in enumerate(row) if "SEND" in action or "RECV" in action]
    place = chance.choice(messages)
    moved = row.pop(place)
    row.insert(chance.randint(max(0, place - 6), min(len(row), place + 6)), moved)
    if chance.random() < 0.4:
        _exchange(chance, row)
    text = "\n".join(map(",".join, rows))
    case = ScheduleCase(f"{name} #{seed}", ranks, stages, micro_batches, {}, text)
    try:
        case.program(folder)
    except FormatError:
        return None
    return case


def _exchange(chance: random.Random, row: list[str]) -> None:
    """Exchange two messages of one kind."""
    kind = chance.choice(("SEND_F", "RECV_F", "SEND_B", "RECV_B"))
    places = [place for place, action in enumerate(row) if kind in action]
    first, second = chance.sample(places, 2)
    row[first], row[second] = row[second], row[first]


def cases(folder: Path) -> list[ScheduleCase]:
    """All stock schedules, then altered ones, up to the count."""
    result, seed = list(stock()), 0
    while len(result) < COUNT:
        case = altered(seed, folder)
        seed += 1
        if case is not None:
            result.append(case)
    return result
