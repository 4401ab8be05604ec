"""What long attacks share: the result of a task, a file of results, and a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("primepar/**/*.py", "reference/**/*.py", "verify/**/*.py", "tests/**/*.py")


class TaskResult(msgspec.Struct, frozen=True):
    """How a task ended: where it counts, what it adds there, and what is wrong with it."""

    rows: dict[str, str]
    """Table -> its row."""
    numbers: dict[str, float]
    """Column -> what it adds."""
    is_wrong: bool = False
    """Whether one reader contradicts another."""
    note: str = ""
    """A line that is printed."""
    same: str = ""
    """Results with one text here count once."""


def fingerprint() -> str:
    """Another one after any change of the code: what was decided before counts no more."""
    sources = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


class Store:
    """A file of lines: the fingerprint of the code, then a task and its result each.

    A run that was stopped goes on from what it holds; results of other code are dropped.
    """

    def __init__(self, path: Path, of: str) -> None:
        self.kept: dict[str, TaskResult | None] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        first = msgspec.json.encode(of)
        kept = list(_decoded(lines[1:])) if lines[:1] == [first] else []
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("wb")
        self.file.write(first + b"\n")
        for task, result in kept:
            self.keep(task, result)

    def keep(self, task: str, result: TaskResult | None) -> None:
        """Note and write how a task ended."""
        self.kept[task] = result
        self.file.write(msgspec.json.encode((task, result)) + b"\n")
        self.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.file.close()


def _decoded(lines: list[bytes]) -> Iterator[tuple[str, TaskResult | None]]:
    decoder = msgspec.json.Decoder(tuple[str, TaskResult | None])
    for line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:
            continue  # a run was stopped while it wrote this line


def judged(
    name: str, decide: Callable[[Any], TaskResult | None], tasks: Sequence[Any], jobs: int,
    total: int,
) -> Iterator[tuple[str, TaskResult | None]]:  # fmt: skip
    """The tasks and their results as they come, with one bar on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True,
    )  # fmt: skip
    with bar, Pool(jobs) as pool:
        row = bar.add_task(name, total=total, completed=total - len(tasks))
        results = pool.imap(decide, tasks, chunksize=4)
        for task, result in zip(tasks, results, strict=True):
            bar.advance(row)
            yield str(task), result
