"""Breaks training runs on purpose: `make faults`, and `make faults ONLY=--long`.

The sweep breaks a run of two ranks in 100 ways, ten of each kind, in a step and on a rank that
differ. A run that cannot go on has to end with one line and the code of an error, and after
`--resume` its losses have to be those of a run that was left alone, bit for bit. `--long` does that
with one run of minutes, which is interrupted five times and killed five times.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from command import Done
from training_cases import full
from warm import python

from primepar.cli import main
from primepar.distributed.training.log import StepRow, read_log
from primepar.distributed.training.trainer import Trainer

STEPS, RANKS, LONGEST = 8, 2, 60.0
"""Steps and ranks of a run of the sweep; seconds that a fault may take."""
SMALL = (
    "--plan", "K2", "--timeout", "5", "--set", "training.batch=4", "--set", "model.layers=1",
    "--set", "model.hidden=32", "--set", "model.context=16", "--set", "checks.verify=false",
    "--set", "evaluation.batches=1", "--set", "checkpoint.every=2",
)  # fmt: skip
LARGE = ("--plan", "K2", "--set", "checks.verify=false", "--set", "evaluation.every=0")
PARTS = 24
"""Checkpoints of the run of minutes, at least."""
BEGIN = "primepar: error: "


class Fault(NamedTuple):
    """A fault of one rank in one step, or one of those ten before the run: its number is `step`."""

    kind: str
    rank: int
    step: int


class Broken(NamedTuple):
    """What came of a fault: the line, how long the run took to end, and what is wrong with it."""

    fault: Fault
    line: str
    seconds: float
    wrong: str


def _killed(trainer: Trainer) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stopped(trainer: Trainer) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hangs(trainer: Trainer) -> None:
    time.sleep(10 * LONGEST)


def _without_memory(trainer: Trainer) -> None:
    torch.empty(1 << 48)  # what no machine has


def _not_a_number(trainer: Trainer) -> None:
    next(iter(trainer.state.blocks.values())).fill_(torch.nan)


def _disk_is_full(trainer: Trainer) -> None:
    patch.object(os, "posix_fallocate", full).start()


def _loses_its_network(trainer: Trainer) -> None:
    """Shut down every connection of this process, as a router that is switched off would."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.getpeername()  # an error for one that only listens
                connection.shutdown(socket.SHUT_RDWR)


def _clock_jumps(trainer: Trainer) -> None:
    now, jump = time.time, (-1) ** trainer.done * 3600.0 * 24 * 365
    patch.object(time, "time", lambda: now() + jump).start()


IN_A_STEP: dict[str, Callable[[Trainer], None]] = {
    "kill": _killed,
    "stop": _stopped,
    "hang": _hangs,
    "out of memory": _without_memory,
    "not a number": _not_a_number,
    "full disk": _disk_is_full,
    "lost network": _loses_its_network,
    "clock": _clock_jumps,
}
"""Kind -> what the rank does when it has read the batch of the step, before it computes."""
BEFORE = ("broken file", "world size")
"""Kinds of faults that a run meets when it starts."""


def _inject(fault: Fault) -> None:
    """Let the rank of a fault have it; ranks that are forked from this process inherit that."""
    on_device = Trainer._on_device

    def read(self: Trainer, batch: Any) -> Any:
        if (self.world.rank, self.done + 1) == (fault.rank, fault.step):
            IN_A_STEP[fault.kind](self)
        return on_device(self, batch)

    Trainer._on_device = read  # type: ignore[method-assign]


def train(folder: Path, *words: str, fault: Fault | None = None, ranks: int = RANKS) -> Done:
    """Run `primepar train` in a folder, with a fault or without."""
    given = [] if fault is None else [str(part) for part in fault]
    return python(
        __file__, "--train", *given, "--", "--ranks", str(ranks), "--checkpoint", "saved",
        "--set", "output.log=log.jsonl", "--steps", str(STEPS), *SMALL, *words, folder=folder,
        env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def losses(folder: Path) -> list[tuple[int, float]]:
    """Step and loss of every step in the log of a run."""
    rows = read_log(folder / "log.jsonl")
    return [(row.step, row.loss) for row in rows if isinstance(row, StepRow)]


def broken(fault: Fault, folder: Path, expected: list[tuple[int, float]]) -> Broken:
    """Break a run, let it go on, and compare its losses with those of a run without a fault."""
    if fault.kind in BEFORE:
        train(folder, "--steps", str(STEPS // 2))
    start = time.monotonic()
    done, repair = _met(fault, folder)
    seconds, wrong = time.monotonic() - start, []
    lines = [line for line in done.err.splitlines() if line.strip()]
    goes_on = fault.kind == "clock"
    if goes_on and (done.code, lines) != (0, []):
        wrong.append(f"exit code {done.code}: {done.err}")
    if not goes_on and (len(lines) != 1 or not lines[0].startswith(BEGIN) or done.code != 2):
        wrong.append(f"exit code {done.code}, {len(lines)} lines: {done.err}")
    if seconds > LONGEST:
        wrong.append(f"{seconds:.0f} s")
    if not goes_on:
        repair()
        done = train(folder, *_resume(folder))
        if done.code:
            wrong.append(f"not resumed: {done.err}")
    if losses(folder) != expected:
        wrong.append("other losses")
    return Broken(fault, lines[0].removeprefix(BEGIN) if lines else "", seconds, "; ".join(wrong))


def _met(fault: Fault, folder: Path) -> tuple[Done, Callable[[], object]]:
    """Run into a fault; returns how the run ended, and what repairs it."""
    if fault.kind == "world size":
        return train(folder, "--resume", ranks=RANKS + 1 + fault.step), lambda: None
    if fault.kind == "broken file":
        newest = max(folder.glob("saved/step-*"))
        files = sorted(newest.iterdir())
        file = files[fault.step % len(files)]
        whole = file.read_bytes()
        place = (fault.step * len(whole)) // 10
        if fault.rank:
            file.write_bytes(whole[:place])
        else:
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        return train(folder, "--resume"), lambda: file.write_bytes(whole)
    return train(folder, fault=fault), lambda: None


def _resume(folder: Path) -> list[str]:
    """What a user adds to the command: a run without a whole checkpoint begins anew."""
    return ["--resume"] * any(path.suffix != ".part" for path in folder.glob("saved/step-*"))


def faults(only: Sequence[str]) -> Iterator[Fault]:
    """Ten faults of each kind, or of the kinds that are named."""
    for kind in (*IN_A_STEP, *BEFORE):
        for number in range(10):
            if not only or kind in only:
                saves = kind == "full disk"  # steps after which there is a checkpoint
                step = 2 * (1 + number // 2 % 4) if saves else number if kind in BEFORE else (
                    1 + number // 2)  # fmt: skip
                yield Fault(kind, number % 2, step)


def sweep(only: Sequence[str]) -> int:
    """Break a run by every fault and print a table; returns how many went wrong."""
    rows: list[Broken] = []
    with tempfile.TemporaryDirectory() as kept:
        left_alone = Path(kept, "alone")
        left_alone.mkdir()
        done = train(left_alone)
        assert done.code == 0, done.err
        expected = losses(left_alone)
        for number, fault in enumerate(faults(only)):
            folder = Path(kept, str(number))
            folder.mkdir()
            rows.append(broken(fault, folder, expected))
            if rows[-1].wrong:
                print(f"{fault}: {rows[-1].wrong}", flush=True)
    print("| fault | runs | as promised | longest, s | the line of one |")
    print("|---|---|---|---|---|")
    for kind in dict.fromkeys(row.fault.kind for row in rows):
        of_kind = [row for row in rows if row.fault.kind == kind]
        good = [row for row in of_kind if not row.wrong]
        longest = max(row.seconds for row in of_kind)
        line = of_kind[-1].line or "none: the run goes on"
        print(f"| {kind} | {len(of_kind)} | {len(good)} | {longest:.1f} | {line} |")
    return sum(bool(row.wrong) for row in rows)


def long_run(steps: int) -> int:
    """Interrupt a run five times and kill it five times; returns 1 if its losses differ."""
    with tempfile.TemporaryDirectory() as kept:
        folders = [Path(kept, name) for name in ("alone", "disturbed")]
        for folder in folders:
            folder.mkdir()
        numbers = [signal.SIGINT, signal.SIGKILL] * 5
        seconds = [_disturbed(folders[0], steps, []), _disturbed(folders[1], steps, numbers)]
        one, another = map(losses, folders)
    equal = one == another and len(one) == steps
    print(
        f"{steps} steps in {seconds[0]:.0f} s alone, in {seconds[1]:.0f} s with 5 interruptions "
        f"and 5 kills: losses {'equal bit for bit' if equal else 'DIFFER'}, the last {one[-1][1]!r}"
    )
    return not equal


def _disturbed(folder: Path, steps: int, numbers: Sequence[signal.Signals]) -> float:
    """Train, with a signal at equal distances; returns the seconds."""
    words = [
        sys.executable, "-m", "primepar", "train", "--ranks", str(RANKS), "--steps", str(steps),
        "--checkpoint", str(folder / "saved"), "--set", f"output.log={folder / 'log.jsonl'}",
        "--set", f"checkpoint.every={max(1, steps // PARTS)}", *LARGE,
    ]  # fmt: skip
    start = time.monotonic()
    for turn, number in enumerate((*numbers, None)):
        child = subprocess.Popen(
            [*words, *_resume(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if number is not None:
            due = steps * (turn + 1) // (len(numbers) + 1)
            while child.poll() is None and _logged(folder) < due:
                time.sleep(0.5)
            child.send_signal(number)
        child.wait()
    return time.monotonic() - start


def _logged(folder: Path) -> int:
    """Steps in a log that is being written."""
    log = folder / "log.jsonl"
    return log.read_bytes().count(b'"row":"step"') if log.exists() else 0


def _main(words: Sequence[str]) -> int:
    if words[:1] == ["--train"]:
        given, arguments = words[1 : words.index("--")], words[words.index("--") + 1 :]
        if given:
            _inject(Fault(given[0], int(given[1]), int(given[2])))
        sys.argv = ["primepar", "train", *arguments]
        main()
        return 0
    if words[:1] == ["--long"]:
        return long_run(int(words[1]) if words[1:] else 3000)
    return int(sweep(words) > 0)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
