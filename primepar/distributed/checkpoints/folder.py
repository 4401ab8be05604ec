"""The folder of a run's checkpoints: names, the lock, what a kill has left, and the last N.

Only rank 0 makes, renames and deletes here, so that several hosts may share the folder. A
checkpoint is written as `step-00000100.part`, and renamed when all ranks have finished.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from primepar.errors import CheckpointError
from primepar.files import flush, reason, remove

LOCK = ".lock"
PART = ".part"
SHOWN_SECONDS = 5.0
"""How long a file system may take to show a file that another machine has written."""
_NAME = re.compile(r"step-(\d+)")


def step_folder(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


def saved_steps(folder: Path) -> dict[int, Path]:
    """Return step -> path of the checkpoints of a folder, the newest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    steps = {int(match[1]): path for path in paths if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(steps.items(), reverse=True))


def saved_path(folder: str | None, *, resume: bool) -> Path | None:
    """Return the checkpoint to resume from, None for a new run.

    Raises `CheckpointError` if there is none to resume from, or if a new run finds one.
    """
    newest = next(iter(saved_steps(Path(folder)).values()), None) if folder else None
    if resume and newest is None:
        raise CheckpointError(
            f"{folder}: expected a checkpoint to resume from, found none: leave --resume out to "
            "begin a new run"
        )
    if newest is not None and not resume:
        raise CheckpointError(
            f"{folder}: expected a folder without checkpoints for a new run, got {newest.name}: "
            "add --resume to go on from it, or choose another folder"
        )
    return newest


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn failures to write a checkpoint into `CheckpointError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise CheckpointError(
            f"{path}: expected to write a checkpoint, got {why}: choose another --checkpoint "
            "folder or make room"
        ) from None


def check_shared(folder: Path, holder: str) -> None:
    """Raise `CheckpointError` unless this machine sees the folder that rank 0 has locked.

    `holder` is the text in the lock file. A file system may show it late.
    """
    deadline = time.monotonic() + SHOWN_SECONDS
    while _holder_in(folder) != holder:
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"--checkpoint {folder}: expected the folder of rank 0, {holder}, got another one "
                f"on {socket.gethostname()}: choose one on a file system that all hosts share"
            )
        time.sleep(0.1)


def _holder_in(folder: Path) -> str | None:
    try:
        return (folder / LOCK).read_text(errors="replace")
    except OSError:
        return None


class RunFolder:
    """The folder while this run may write to it; to be used by rank 0 only.

    The lock ends with the process, whatever ends it. So what is not complete in a locked folder is
    of a run that has ended, and the next `prepare` deletes it.
    """

    def __init__(self, folder: Path) -> None:
        """Create and lock the folder. Raises `CheckpointError` if it is not writable or in use."""
        self.folder = folder
        self.holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._lock: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._take(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666))
        except OSError as error:
            raise CheckpointError(
                f"--checkpoint {folder}: expected a folder to write to, got {reason(error)}: "
                "choose another one"
            ) from None

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 200).decode(errors="replace") or "another process"
            os.close(lock)
            raise CheckpointError(
                f"--checkpoint {self.folder}: expected a folder that no other run writes to, got "
                f"that of {holder}: wait for its end, or choose another one"
            ) from None
        except OSError:  # a file system without locks
            self._sign(lock)
            os.close(lock)
            return
        self._sign(lock)
        self._lock = lock

    def _sign(self, lock: int) -> None:
        """Write who holds the folder, so that other machines see it."""
        os.truncate(lock, 0)
        os.write(lock, self.holder.encode())
        os.fsync(lock)

    def prepare(self, path: Path) -> Path:
        """Create the folder of an incomplete checkpoint; delete those that a kill has left."""
        part = path.with_suffix(PART)
        left = self.folder.glob(f"step-*{PART}") if self._lock is not None else [part]
        for partial in left:
            remove(partial)
        part.mkdir()
        return part

    def publish(self, path: Path) -> None:
        """Give a complete checkpoint its name. Raises `OSError` if the name is taken."""
        part = path.with_suffix(PART)
        flush(part)
        part.rename(path)
        flush(self.folder)

    def prune(self, keep: int) -> None:
        """Delete all but the last `keep` checkpoints; 0 keeps all."""
        for path in list(saved_steps(self.folder).values())[keep:] if keep else ():
            part = path.with_suffix(PART)
            path.rename(part)  # half of it must not look whole
            remove(part)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
