"""Captures the scripts of `preflight_scripts`, as they are and with changes."""

from __future__ import annotations

import tempfile
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import NamedTuple

from command import Done, run

HERE = Path(__file__).parents[1]
SCRIPTS = HERE / "preflight_scripts"


class Case(NamedTuple):
    """A script with some of its text replaced, run by `primepar preflight` with options."""

    script: str
    options: tuple[str, ...] = ("-n", "4")
    changes: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


def write(case: Case, folder: Path) -> None:
    """Write the script of a case into a folder."""
    text = (SCRIPTS / case.script).read_text()
    for old, new in case.changes:
        assert text.count(old) == 1, f"{case.script} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    (folder / case.script).write_text(text)


@cache
def answer(case: Case) -> Done:
    """What the command prints for a case, captured in this process; no file is left or changed."""
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        if case.script != "none.py":
            write(case, folder)
        before = _disk(folder)
        done = run("preflight", *case.options, case.script, *case.arguments)
        assert {k: v for k, v in _disk(folder).items() if k != "fixed.json"} == before
    return done


def _disk(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
