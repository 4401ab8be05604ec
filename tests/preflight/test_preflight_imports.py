"""`primepar preflight` of the files of other tools, with slots and orders."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

ROOT = Path(__file__).resolve().parents[2]
SCHEDULE = "docs/examples/deferred-zbv.csv"
HEAD_ON = "docs/examples/head-on.json"


def last_lines(*arguments: str) -> tuple[int, list[str]]:
    """Exit code, and the lines after the last property."""
    done = run("preflight", *arguments)
    lines = done.out.splitlines()
    place = max(number for number, line in enumerate(lines) if line.startswith("  races"))
    return done.code, lines[place + 1 :]


def test_two_sends_that_meet_head_on_need_a_slot() -> None:
    assert last_lines(HEAD_ON) == (1, ["  it would end with 1 slot or more"])
    assert last_lines("--slots", "1", HEAD_ON) == (0, [])
    assert last_lines("--slots", "any", "--order", "peer", HEAD_ON) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--order", "nccl", SCHEDULE],
         "--order: expected free, communicator, peer, queue, got 'nccl'"),
        (["--slots", "-1", SCHEDULE], "--slots: expected a number from 0, or any, got '-1'"),
        (["-n", "2", SCHEDULE], f"{SCHEDULE}: expected a file alone, as it has its ranks, got "
         "--ranks 2 too: leave it out"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_end_in_one_line(arguments: list[str], message: str) -> None:
    done = run("preflight", *arguments)
    assert (done.code, done.err.strip()) == (2, f"primepar: error: {message}")
