"""Rooms stay as small as they have become: `budgets.toml` has the lines of each, as a ratchet.

A room is a folder. Counted are all lines of its Python files, docstrings and comments included. A
room above its budget fails, and so does one more than 2 % below it: whoever makes a room smaller
lowers its number. `python tests/house/test_budgets.py` writes the numbers of now.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUDGETS = HERE / "budgets.toml"
SLACK = 0.02


def lines_of_rooms() -> dict[str, int]:
    """Room -> lines of the Python files that git knows; `primepar` is that of its own files."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    lines: Counter[str] = Counter()
    for name in filter(None, names):
        parts = Path(name).parts
        room = "/".join(parts[:2]) if parts[0] == "primepar" and len(parts) > 2 else parts[0]
        path = ROOT / name
        if path.is_file():
            lines[room] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(lines.items()))


def budgets() -> dict[str, int]:
    budgets_: dict[str, int] = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["lines"]
    return budgets_


def over_or_under(lines: int, budget: int) -> str:
    """What is wrong with a room; empty if nothing is."""
    if lines > budget:
        return f"expected at most {budget} lines, got {lines}: make it smaller, or state why"
    if lines < budget * (1 - SLACK):
        return f"expected the budget to follow, got {lines} lines of {budget}: lower it to {lines}"
    return ""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="counts the files that git knows")
def test_every_room_keeps_its_budget() -> None:
    lines, allowed = lines_of_rooms(), budgets()
    assert lines.keys() == allowed.keys()
    wrong = {room: over_or_under(lines[room], allowed[room]) for room in lines}
    assert {room: text for room, text in wrong.items() if text} == {}


def test_a_room_above_its_budget_or_far_below_it_is_wrong() -> None:
    assert over_or_under(1001, 1000).startswith("expected at most 1000 lines, got 1001: ")
    assert over_or_under(979, 1000).endswith("lower it to 979")
    assert over_or_under(981, 1000) == over_or_under(1000, 1000) == ""


def main() -> None:
    """Write the lines of now."""
    entries = (f'"{room}" = {lines}' for room, lines in lines_of_rooms().items())
    head = "# Lines of Python in each room: a maximum, and a ratchet (test_budgets.py).\n[lines]\n"
    BUDGETS.write_text(head + "\n".join(entries) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
