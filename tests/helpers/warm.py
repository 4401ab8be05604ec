"""Runs `python ...` as a fork of a process that has torch, Z3 and primepar loaded.

An interpreter that imports them takes 2 to 7 s of CPU, a fork a hundredth of that. What is run so
forks the Python programs that it starts: `primepar train --ranks 4` forks four ranks. That they are
started as programs of their own is left to `test_launch.py`.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never
from unittest.mock import patch

import torch
from command import Done
from distributed_ranks import forked


def python(*words: str | Path, folder: Path, env: Mapping[str, str] | None = None) -> Done:
    """Run `python WORDS` in a folder, with changes of the environment, and return how it ended."""
    with tempfile.TemporaryDirectory() as kept:
        streams = [Path(kept, name) for name in ("out", "err")]
        process = forked(_begin, [*map(str, words)], folder, {**os.environ, **(env or {})}, streams)
        process.join()
        out, err = (path.read_text(encoding="utf-8") for path in streams)
    assert process.exitcode is not None
    return Done(process.exitcode, out, err)


def _begin(words: list[str], folder: Path, env: dict[str, str], streams: list[Path]) -> Never:
    for number, path in zip((1, 2), streams, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    with patch("subprocess.Popen", Fork), patch("subprocess.run", _run):
        sys.exit(_code(words, env))


class Fork:
    """Takes the place of `subprocess.Popen` for a Python program that inherits its output."""

    def __init__(
        self, words: list[str], *, env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], None] = lambda: None, **_: Any,
    ) -> None:  # fmt: skip
        assert words[0] == sys.executable, words
        sys.stdout.flush()  # else both write what is not yet written
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            preexec_fn()
            code = _code([*map(str, words[1:])], env or os.environ)
            os._exit(code)  # what the parent does at its end is not the child's

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """The exit code, or minus the signal that ended it; None if it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int | None:
        """Wait for the end, and return the exit code."""
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def _run(words: list[str]) -> SimpleNamespace:
    return SimpleNamespace(returncode=Fork(words).wait())


def _code(words: list[str], env: Mapping[str, str]) -> int:
    """The exit code of `python WORDS`, run in this process."""
    os.environ.clear()
    os.environ.update(env)
    torch.set_num_threads(int(env.get("OMP_NUM_THREADS", 1)))
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(words[0]).parent)
            runpy.run_path(words[0], run_name="__main__")
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)
