"""Every wrong primitive and program is refuted, and the command that is printed meets the fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import run
from profiles import few

WRONG = Path(__file__).parents[1] / "wrong"


def target_of(path: Path) -> str:
    """Name the program, or the last primitive that a file defines."""
    if path.suffix == ".json":
        return str(path)
    names = re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    return f"{path}:{names[-1]}"


FILES = sorted(path for path in WRONG.iterdir() if path.suffix in (".json", ".py"))
PROGRAMS = sorted(WRONG.glob("*.json"))


@few
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_wrong_is_refuted_drawn_and_replayed(path: Path) -> None:
    target = target_of(path)
    done = run("verify", target)
    assert (done.code, done.err) == (1, "")
    replay = done.out.splitlines()[-1].removeprefix("  replay: primepar ")
    assert replay.startswith(f"check {target}")
    assert run(*replay.split()).code == 1
    assert run("show", *replay.split()[1:]).code == 0


@few
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_the_smallest_wrong_program_is_written_drawn_and_replayed(
    path: Path, tmp_path: Path
) -> None:
    smallest, picture = tmp_path / "smallest.json", tmp_path / "wrong.svg"
    done = run("verify", str(path), "--minimal", str(smallest), "-o", str(picture))
    assert done.code == 1
    replay = done.err.splitlines()[-1].removeprefix("  replay: primepar ")
    assert replay == f"check {smallest}"
    assert run(*replay.split()).code == 1
    assert run("verify", str(smallest)).code == 1
    assert picture.read_text().startswith("<svg ")
