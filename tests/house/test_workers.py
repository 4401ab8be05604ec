"""Forked workers report what one process reports, and a worker that dies is a failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
TESTS = {
    "conftest.py": "pytest_plugins = ['forked_workers']\n",
    "test_one.py": """
import os, warnings, pytest

@pytest.fixture(scope="module")
def made():
    return os.getpid()

@pytest.mark.parametrize("number", range(3))
def test_of_a_module(number, made, tmp_path):
    warnings.warn("forwarded")
    assert made == os.getpid()

def test_that_fails(made):
    print("printed")
    assert made == 0

@pytest.mark.skip(reason="on purpose")
def test_left_out():
    pass
""",
    "test_two.py": """
import os

def test_before():
    pass

def test_that_dies():
    os._exit(3)

def test_after():
    pass
""",
}


def ran(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder, env={"PYTHONPATH": str(HELPERS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_what_forks_report_is_what_one_process_reports(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    several = ran(tmp_path, "--workers", "2")
    assert re.search(r"2 failed, 4 passed, 1 skipped, 3 warnings", several)
    assert "Captured stdout call" in several
    assert "\nthe worker ended with 3 in this test, and runs no other one of its file\n" in several
    first = ran(tmp_path, "--workers", "1", "-x", "test_one.py", "test_two.py")
    assert re.search(r"^1 failed, 3 passed, 3 warnings", first, re.MULTILINE), first
