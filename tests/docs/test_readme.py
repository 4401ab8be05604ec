"""README and docs are true: their Python runs, their commands print what is shown.

Blocks run in order, in one folder. A `python` block whose first line is `# name.py` is also saved
under that name. In `console` and `sh` blocks the lines that start with `$ primepar ` are run; lines
below one, if there are any, are what it must print, where `...` stands for anything. A command
that is meant to end with another code than 0 is marked: `$ primepar verify wrong.py:W  # exit 1`.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from command import run
from profiles import long
from warm import python

stored = cache(run)
"""Several pages show the same command of the library: it is run once."""
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (primepar .*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def run_blocks(text: str, folder: Path) -> None:
    """Run every Python block and every primepar command of a Markdown text in `folder`."""
    names: dict[str, object] = {"__name__": "readme"}
    for language, body in FENCE.findall(text):
        if language == "python":
            run_python(body, names, folder)
        elif language == "toml" and (named := re.match(r"# ([\w.]+\.toml)\n", body)):
            (folder / named[1]).write_text(body, encoding="utf-8")
        elif language in ("console", "sh"):
            for command, shown in COMMAND.findall(body):
                run_command(command, shown, folder)


def run_python(body: str, names: dict[str, object], folder: Path) -> None:
    """Execute one block in the names of those before it; save it if its first line names a file.

    A script of several processes is only saved.
    """
    named = re.match(r"# ([\w.]+\.py)\n", body)
    path = folder / (named[1] if named else "block.py")
    path.write_text(body, encoding="utf-8")
    if "init_process_group(" not in body:
        exec(compile(body, str(path), "exec"), names)


def run_command(command: str, shown: str, folder: Path) -> None:
    """Run one `primepar` command; its exit code and what it prints are those that are shown."""
    line, _, code = command.partition("# exit ")
    _, *arguments = shlex.split(line)
    captures = arguments[0] == "preflight" and any(name.endswith(".py") for name in arguments)
    trains = arguments[0] == "train" and not code and "--show-config" not in arguments
    if captures or trains:  # training takes signals and starts processes, a capture replaces torch
        done = python("-m", "primepar", *arguments, folder=folder, env=PLAIN)
    else:
        reads_a_file = any("." in word or "/" in word for word in arguments)
        done = run(*arguments) if reads_a_file else stored(*arguments)
    printed = done.out + done.err
    assert done.code == int(code or 0), f"$ {command}\n{printed}"
    same = doctest.OutputChecker().check_output(shown.strip(), printed.strip(), doctest.ELLIPSIS)
    assert same or not shown.strip(), f"$ {command}\nprints\n{printed}"


def folder_like_the_checkout(folder: Path) -> Path:
    """Link all of the checkout into `folder`: paths work, and nothing is left behind."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_like_the_checkout(tmp_path))
    run_blocks(page.read_text(encoding="utf-8"), tmp_path)


@long
def test_the_shell_lines_of_the_readme_run_in_order_in_one_shell(tmp_path: Path) -> None:
    """As a user types them, with `.venv` not yet on the path. `make` has made it before.

    `primepar train --ranks 4` is left to test_demo.py, which trains by it.
    """
    folder = folder_like_the_checkout(tmp_path)
    (folder / ".venv").symlink_to(sys.prefix)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [body for language, body in FENCE.findall(text) if language == "sh"]
    others = ("make ", "primepar train ")
    lines = [line for line in "".join(blocks).splitlines() if not line.startswith(others)]
    assert [line.split()[0] for line in lines] == ["source", "primepar", "OMP_NUM_THREADS=1"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, **PLAIN, "PATH": os.defpath},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("step 10/10: held-out loss") == 1


def test_blocks_run_in_order_and_a_named_one_is_saved(tmp_path: Path) -> None:
    run_blocks("```python\n# one.py\nx = 1\n```\n\n```python\nassert x == 1\n```\n", tmp_path)
    assert (tmp_path / "one.py").read_text() == "# one.py\nx = 1\n"


def test_a_python_block_that_fails_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_blocks("```python\n1 / 0\n```\n", tmp_path)


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_blocks("```console\n$ primepar no-such-command\n```\n", tmp_path)
    run_blocks("```console\n$ primepar no-such-command  # exit 2\n```\n", tmp_path)


def test_a_command_that_prints_something_else_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_blocks("```console\n$ primepar --help\nUsage: another\n```\n", tmp_path)
    run_blocks("```console\n$ primepar --help\n...Usage...\n$ primepar --help\n```\n", tmp_path)
