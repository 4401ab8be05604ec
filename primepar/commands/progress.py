"""The progress bars of long commands: on a terminal only, and gone when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Tick: TypeAlias = Callable[[str], None]
"""Called with what comes next."""


@contextmanager
def progress(total: int | None = None) -> Iterator[Tick]:
    """Show what is under way, and how much of the total is done where that is known."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal,
                  transient=True) as bar:  # fmt: skip
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


@contextmanager
def byte_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show how many bytes of a total each task has read, and how fast; a call names its task."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal,
                  transient=True) as bar:  # fmt: skip
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], advance=done)

        yield report
