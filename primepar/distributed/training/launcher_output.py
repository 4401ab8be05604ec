"""What mpirun prints about a job that failed, in the form of all other messages.

Open MPI prints a paragraph between two rulers when a process fails. If the process ended with an
error of its own, that error has been printed: the paragraph has nothing to add, and is left out.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

_RULER = re.compile(r"-{60,}\s*")
_FAILED = "one or more processes exited with non-zero status"
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


class LauncherOutput:
    """The lines of a launcher's stderr; `killed` is the message about a process that was killed."""

    def __init__(self) -> None:
        self.killed = ""

    def lines(self, printed: Iterable[str]) -> Iterator[str]:
        """Yield the lines to show; a paragraph is held back until its end is known."""
        paragraph: list[str] | None = None
        for line in printed:
            if paragraph is None:
                if _RULER.fullmatch(line):
                    paragraph = [line]
                else:
                    yield line
            else:
                paragraph.append(line)
                if _RULER.fullmatch(line):
                    yield from self._shown(paragraph)
                    paragraph = None
        yield from paragraph or ()

    def _shown(self, paragraph: list[str]) -> list[str]:
        text = " ".join(" ".join(paragraph[1:-1]).split())
        killed = _KILLED.search(text)
        if killed is not None:
            self.killed = killed_message(f"rank {killed[1]}", int(killed[2]))
        return [] if killed is not None or _FAILED in text else paragraph


def killed_message(name: str, number: int) -> str:
    """Return the message about a process that a signal has ended."""
    return (
        f"{name}: expected a process that ends by itself, got {signal.Signals(number).name}: "
        "look for what ended it, as a lack of memory does"
    )
