"""Captures the scripts of `preflight_scripts`, as they are and with changes, in one process."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from command import Done, run
from distributed_ranks import SHARED
from warm import python

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
def captured(cases: tuple[Case, ...]) -> list[Done]:
    """What the command prints for each case; workers of one pytest run share it."""
    shared = os.environ.get(SHARED)
    if shared is None:
        return _run(cases)
    file = Path(shared) / f"captured-{sha256(repr(cases).encode()).hexdigest()[:8]}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(_run(cases)))
        return [Done(*done) for done in json.loads(file.read_text())]


def _run(cases: tuple[Case, ...]) -> list[Done]:
    with TemporaryDirectory() as folder:
        done = python(__file__, json.dumps(cases), folder=Path(folder))
    assert done.code == 0, done.err
    return [Done(*each) for each in json.loads(done.out)]


def _disk(folder: Path) -> dict[str, bytes]:
    """What is on the disk: no capture may leave or change a file."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    """Print what the command prints for each of the cases."""
    results = []
    for values in json.loads(sys.argv[1]):
        case = Case(values[0], values[1], tuple(map(tuple, values[2])), values[3])
        with TemporaryDirectory() as folder:
            if case.script != "none.py":
                write(case, Path(folder))
            os.chdir(folder)
            before = _disk(Path(folder))
            done = run("preflight", *case.options, case.script, *case.arguments)
            outputs = {"fixed.json"}
            assert {k: v for k, v in _disk(Path(folder)).items() if k not in outputs} == before
            results.append(done)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
