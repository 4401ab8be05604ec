"""Files that a script writes while it is captured: they are kept apart, and deleted at the end.

A rank writes into a folder of its own and reads what it wrote from there; all else is read from the
disk, which stays as it is. For example

    torch.save(model.state_dict(), "last.pt")      # goes to FOLDER/0/home/me/last.pt
    os.path.exists("last.pt")                      # True on this rank, from now on

In a run all ranks see one disk. Here ranks run one after another, so a rank would find what another
one writes later. So it sees only its own files, with one exception: where it opens a file that is
not there, it waits for a rank that writes one, as for a value (`RankLink.ask`).
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from primepar.preflight.capture.recorder import RankRecorder
from primepar.preflight.capture.runner import GivenValue, NeverComesError

_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Entries(ExitStack):
    """What `os.scandir` returns; nothing is open."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__()
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)


class PretendedFiles:
    """The files of one rank, in a folder of all ranks."""

    def __init__(self, folder: Path, recorder: RankRecorder) -> None:
        self.folder, self.recorder = str(folder), recorder
        self.written = f"{folder}/{recorder.rank}"
        self.removed: set[str] = set()
        self.new: set[str] = set()
        """Written since the last call of a collective, after which other ranks may read them."""
        self.stat, self.copy = os.stat, shutil.copyfile
        self.mkdir, self.hard_link, self.unlink = os.mkdir, os.link, os.unlink

    def install(self) -> None:
        """Replace the functions of Python and torch that name files."""
        shutil.rmtree(self.written, ignore_errors=True)  # of a rank that starts anew
        temporary = Path(self.written) / "tmp"
        temporary.mkdir(parents=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        functions: Any = os
        vars(shutil)["_use_fd_functions"] = False  # `rmtree` then names each file by its path
        builtins.open = io.open = self._open(builtins.open)
        for name in ("stat", "lstat", "access", "readlink", "chdir", "statvfs"):
            setattr(os, name, self._first(getattr(os, name), self.source))
        for name in ("mkdir", "truncate", "chmod", "utime", "chown"):
            setattr(os, name, self._first(getattr(os, name), self.target))
        original = os.open

        def open_(path: Any, flags: int, *args: Any, **named: Any) -> int:
            if named.get("dir_fd") is None:
                path = self.target(path) if flags & _FLAGS else self.source(path)
            return original(path, flags, *args, **named)

        os.open = open_
        for name in ("remove", "unlink", "rmdir"):
            setattr(os, name, self._remove(getattr(os, name)))
        for name in ("rename", "replace", "link", "symlink"):
            setattr(os, name, self._moved(getattr(os, name), name))
        listed, scanned = os.listdir, os.scandir
        functions.listdir = lambda path=".": list(self._merged(listed, path, str))
        functions.scandir = lambda path=".": _Entries(
            list(self._merged(lambda place: list(scanned(place)), path, lambda entry: entry.name))
        )
        writer, native = torch._C.PyTorchFileWriter, vars(torch._C)
        native["PyTorchFileWriter"] = lambda name, *args, **named: writer(
            self.target(name) if isinstance(name, str) else name, *args, **named
        )

        arrow: Any = sys.modules.get("pyarrow")
        if arrow is not None:  # it opens files in C
            for name in ("memory_map", "OSFile"):
                setattr(arrow, name, self._first(getattr(arrow, name), self.source))
        tensors: Any = sys.modules.get("safetensors")
        if tensors is not None:  # so does it
            save = tensors.serialize_file
            self._replace(tensors.safe_open, self._first(tensors.safe_open, self.awaited))
            self._replace(save, lambda data, path, **named: save(data, self.target(path), **named))

    def _replace(self, original: Any, stand_in: Callable[..., Any]) -> None:
        """Replace a function in all modules that have imported it."""
        name = original.__name__
        for module in sys.modules.copy().values():
            known = getattr(module, "__dict__", {})
            if known.get(name) is original:
                known[name] = stand_in

    def publish(self) -> None:
        """Let other ranks read what was written until now, also if it is deleted later."""
        new, self.new = self.new, set()
        for path in sorted(new):
            mine, there = self.written + path, f"{self.folder}/published{path}"
            if self._exists(mine) and not Path(mine).is_dir() and not self._exists(there):
                Path(there).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # of a rank that runs at the same time
                    self.hard_link(mine, there)
                self.recorder.link.give(f"file {path}", GivenValue(there, None))

    def _place(self, path: Any) -> str | None:
        """The absolute path; None for what is no file of the user's."""
        if isinstance(path, int) or path is None:
            return None
        whole = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return None if whole.startswith((self.folder, "/dev/", "/proc/")) else whole

    def _exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def source(self, path: Any) -> Any:
        """Where a file is to be read."""
        place = self._place(path)
        if place is None:
            return path
        mine = self.written + place
        return mine if place in self.removed or self._exists(mine) else path

    def awaited(self, path: Any) -> Any:
        """Where a file is to be read; if it is not there, by a rank that writes it until then."""
        source, place = self.source(path), self._place(path)
        alone = not self.recorder.recording.instructions
        if place is None or alone or self._exists(source):
            return source
        try:
            return self.recorder.link.ask([f"file {place}"])[0].statement
        except NeverComesError:
            return path

    def target(self, path: Any, keep: bool = True) -> Any:
        """Where a file is to be written; with `keep`, what it held before is there."""
        place = self._place(path)
        if place is None:
            return path
        mine = self.written + place
        for parent in reversed(Path(place).parents):
            there = self.written + str(parent)
            if self._exists(str(parent)) and not self._exists(there):
                self.mkdir(there)
        if keep and Path(place).is_file() and not self._exists(mine):
            self.copy(place, mine)
        if not keep and Path(mine).is_file():
            self.unlink(mine)  # what was published stays as it was
        self.removed.discard(place)
        self.new.add(place)
        return mine

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if any(letter in mode for letter in "wax+"):
                return original(self.target(file, keep="w" not in mode), mode, *args, **named)
            return original(self.awaited(file), mode, *args, **named)

        return open_

    def _first(
        self, original: Callable[..., Any], resolve: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        def function(path: Any, *args: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None:
                path = resolve(path)
            return original(path, *args, **named)

        return function

    def _remove(self, original: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *args: Any, **named: Any) -> None:
            place = self._place(path)
            if place is None or named.get("dir_fd") is not None:
                return original(path, *args, **named)
            mine = self.written + place
            if self._exists(mine) or place in self.removed or not self._exists(place):
                original(mine)
            if self._exists(place):
                self.removed.add(place)
            return None

        return remove

    def _moved(self, original: Callable[..., None], name: str) -> Callable[..., None]:
        def move(source: Any, target: Any, *args: Any, **named: Any) -> None:
            if name == "symlink":
                return original(source, self.target(target, keep=False), *args, **named)
            original(self.target(source), self.target(target, keep=False), *args, **named)
            place = self._place(source)
            if place is not None and name != "link" and self._exists(place):
                self.removed.add(place)
            return None

        return move

    def _merged(
        self, listed: Callable[[Any], list[Any]], path: Any, name: Callable[[Any], str]
    ) -> Iterator[Any]:
        place = self._place(path)
        mine = self.written + place if place is not None else ""
        if place is None or not self._exists(mine):
            entries = listed(path)
            known: set[str] = set()
        else:
            entries = listed(path) if self._exists(place) else []
            new = listed(mine)
            known = {name(entry) for entry in new}
            yield from new
        for entry in entries:
            if name(entry) not in known and f"{place}/{name(entry)}" not in self.removed:
                yield entry
