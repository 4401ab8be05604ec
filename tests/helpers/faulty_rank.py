"""`python tests/helpers/faulty_rank.py FAULT RANK STEP FOLDER train ...`: a rank fails.

The rank does so after it has read its batch, while the others go on. The command starts as
`primepar`, so any launcher can start it. What each process prints on stderr is in the folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from primepar.cli import main
from primepar.errors import ProgramError


def loop() -> None:
    """Go on without end, and without a call that waits."""
    while True:
        pass


def hold_the_lock() -> None:
    """Stay in one call that keeps the lock of Python's interpreter."""
    while True:
        sum(range(10**10))


def wait() -> None:
    """Wait for something that nobody gives."""
    time.sleep(1e6)


def nothing() -> None:
    """Go on as all others."""


def raises() -> None:
    """An error of one line."""
    raise ProgramError("expected a step, got none")


FAULTS: dict[str, Callable[[], None]] = {
    "loop": loop, "lock": hold_the_lock, "wait": wait, "raise": raises,
    "none": nothing,
}  # fmt: skip


def fail_in(fault: Callable[[], None], rank: int, step: int) -> None:
    """Let a rank of this program fail in a step."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as `primepar` does before this import
    from primepar.distributed.training.trainer import Trainer

    on_device = Trainer._on_device

    def read(self: Any, batch: Any) -> Any:
        if self.world.rank == rank and self.done + 1 == step:
            fault()
        return on_device(self, batch)

    Trainer._on_device = read  # type: ignore[method-assign]


if __name__ == "__main__":
    name, failing, last, folder = sys.argv[1:5]
    errors = Path(folder, f"stderr-{os.getpid()}")
    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    fail_in(FAULTS[name], int(failing), int(last))
    del sys.argv[1:5]
    main()
