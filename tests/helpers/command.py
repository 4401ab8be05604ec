"""Runs the command line in this process, as `primepar` would."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from unittest.mock import patch

import typer.main

from primepar.cli import main

os.environ.pop("GITHUB_ACTIONS", None)  # where the tests run: preflight would print more
built = cache(typer.main.get_command)
"""Makes the commands once: typer's reading of their signatures takes longer than most of them."""
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json"


@cache
def example(layers: int) -> str:
    """The path of the example's config.json with other layers."""
    path = Path(mkdtemp()) / "config.json"
    path.write_text(json.dumps(json.loads(EXAMPLE.read_text()) | {"n_layer": layers}))
    return str(path)


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
        patch("typer.main.get_command", built),
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
