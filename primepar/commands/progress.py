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
