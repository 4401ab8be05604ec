"""Runs the command line in this process, as `primepar` would."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

from primepar.cli import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(*arguments: str, program: Callable[[], None] = main, name: str = "primepar") -> Done:
    """Run `primepar`, or another program, with these arguments on a terminal of 100 columns."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", [name, *arguments]),
        patch.dict("os.environ", {"COLUMNS": "100"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            program()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


@cache
def _text(*arguments: str) -> str:
    return run(*arguments, "--json").out


def printed(*arguments: str) -> Any:
    """What a command prints with `--json`; equal commands are run once."""
    return json.loads(_text(*arguments))
