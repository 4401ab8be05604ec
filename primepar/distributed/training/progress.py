"""Progress of a run: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from primepar.distributed.training.launchers import Launch
from primepar.distributed.training.log import EvaluateRow, StepRow
from primepar.distributed.training.settings import Settings

READING = {
    "command": "commands/train.py",
    "settings": "distributed/training/settings.py",
    "launch": "distributed/training/launch.py",
    "plan to program": "operators/step.py",
    "proof": "commands/proof.py",
    "compile": "distributed/runtime/compiler.py",
    "run": "distributed/runtime/executor.py",
    "kernel": "distributed/kernels/linear.py",
}
"""From the command to the first product: what is done, and the file of `primepar` to read."""
LINES = 10
"""Number of lines about steps in one run if there is no terminal."""


def on_terminal(launch: Launch) -> bool:
    """Return whether this is rank 0 and its output goes to a terminal.

    mpirun gives every rank a terminal of its own, wherever it writes what they print.
    """
    return launch.rank == 0 and launch.launcher != "mpirun" and sys.stdout.isatty()


def print_reading(settings: Settings, launch: Launch, *names: str) -> None:
    """Print on rank 0 which files of `READING` the run is at, if the settings ask for it."""
    for name in names if settings.verbose and launch.rank == 0 else ():
        print(f"{name}: primepar/{READING[name]}", flush=True)


def _used(row: StepRow) -> str:
    """Memory and, where it is known, the share of the devices' peak."""
    share = "" if row.mfu is None else f", {row.mfu:.1%} MFU"
    return f"{row.memory_bytes / 2**20:.0f} MiB{share}"


class Reporter:
    """Shows rows of the log; a rank above 0 shows nothing."""

    def __init__(self, launch: Launch, done: int, steps: int) -> None:
        self.console = Console(
            force_terminal=on_terminal(launch),
            quiet=launch.rank > 0,
            soft_wrap=True,
            highlight=False,
        )
        self._every = max(1, (steps - done) // LINES)
        self._steps = steps
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not on_terminal(launch),
        )
        self._task = self._bar.add_task("training", total=steps, completed=done)

    def step(self, row: StepRow) -> None:
        """Show a training step."""
        text = f"loss {row.loss:.4f}, {row.tokens_per_second:.0f} tokens/s, {_used(row)}"
        if row.gradient_norm is None:
            text += f", skipped at loss scale {row.loss_scale:g}"
        self._bar.update(self._task, completed=row.step, description=text)
        if self._bar.disable and (row.step % self._every == 0 or row.step == self._steps):
            self.line(f"step {row.step}/{self._steps}: {text}")

    def evaluation(self, row: EvaluateRow) -> None:
        """Show a held-out loss."""
        bits = "" if row.bits_per_byte is None else f", {row.bits_per_byte:.3f} bits per byte"
        self.line(f"step {row.step}/{self._steps}: held-out loss {row.loss:.4f}{bits}")

    def line(self, text: str) -> None:
        """Show one line of text."""
        self.console.print(text, markup=False)

    def __enter__(self) -> Reporter:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
