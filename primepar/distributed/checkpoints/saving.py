"""Writes the checkpoints of a run, while it trains on.

A save copies the state to host memory and starts a thread that writes it. The thread has no
collective call. In every step the ranks exchange whether one of them still writes. When none does,
all agree on the end, and rank 0 gives the checkpoint its name. So a failure to write ends the run
in one line, at the next step.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from primepar.distributed.checkpoints.folder import (
    PART,
    RunFolder,
    step_folder,
    writing,
)
from primepar.distributed.checkpoints.manifest import (
    Identity,
    Manifest,
    SavedFile,
    write_manifest,
)
from primepar.distributed.checkpoints.shards import save_part, to_save
from primepar.distributed.runtime.training_state import TrainingState
from primepar.distributed.training.launch import World
from primepar.files import remove

_HOLDER = "holder of the checkpoints"
"""Key of the text in the lock file."""


@dataclass(frozen=True)
class _Writing:
    """A checkpoint that this rank writes."""

    step: int
    run_state: dict[str, Any]
    path: Path
    files: Future[dict[str, SavedFile]]


@dataclass
class Checkpoints:
    """The checkpoints that a run writes into a folder, at most one at a time.

    Its methods are collective calls, but `busy`. Raises `CheckpointError` on one rank.
    """

    folder: Path
    identity: Identity
    state: TrainingState
    world: World
    keep: int
    asynchronous: bool
    _opened: RunFolder | None = field(init=False, default=None)
    _writing: _Writing | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._opened = RunFolder(self.folder) if self.world.rank == 0 else None
        if self._opened is not None:
            self.world.store.set(_HOLDER, self._opened.holder)
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    @property
    def holder(self) -> str:
        """The process that has locked the folder, once rank 0 has opened it."""
        return self.world.store.get(_HOLDER).decode()

    @property
    def busy(self) -> bool:
        """Whether this rank still writes."""
        return self._writing is not None and not self._writing.files.done()

    def begin(self, step: int, run_state: dict[str, Any]) -> Path | None:
        """Begin to write the checkpoint of a step.

        First it waits for the one before, and returns the path of that one.
        """
        before = self.finish()
        path = step_folder(self.folder, step)
        with self.world.agreement(f"{path} opened"), writing(path):
            if self._opened is not None:
                self._opened.prepare(path)
        tensors = to_save(self.state, copied=self.asynchronous)
        part = path.with_suffix(PART)
        task = self._thread.submit(save_part, part, self.world.rank, tensors)
        self._writing = _Writing(step, deepcopy(run_state), path, task)
        if not self.asynchronous:
            task.exception()  # wait; `finish` reports it
        return before

    def finish(self) -> Path | None:
        """Wait for the checkpoint that is being written, and return its path; None if none is."""
        if self._writing is None:
            return None
        done, self._writing = self._writing, None
        try:
            with self.world.agreement(f"{done.path} written"), writing(done.path):
                text = msgspec.json.encode(done.files.result()).decode()
                self.world.store.set(f"{done.path} files/{self.world.rank}", text)
            with self.world.agreement(f"{done.path} named"), writing(done.path):
                if self._opened is not None:
                    self._publish(self._opened, done)
        except BaseException:
            if self._opened is not None:
                remove(done.path.with_suffix(PART))
            raise
        return done.path

    def _publish(self, opened: RunFolder, done: _Writing) -> None:
        files: dict[str, SavedFile] = {}
        for rank in range(self.world.size):
            text = self.world.store.get(f"{done.path} files/{rank}")
            files |= msgspec.json.decode(text, type=dict[str, SavedFile])
        manifest = Manifest(done.step, self.identity, done.run_state, files)
        folder = done.path.with_suffix(PART)
        for name, saved in manifest.files.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != saved.size:
                raise ValueError(f"no {name} of another host: all hosts must share the folder")
        write_manifest(folder, manifest)
        opened.publish(done.path)
        opened.prune(self.keep)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)
        if self._opened is not None:
            self._opened.__exit__(*error)
