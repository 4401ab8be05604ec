"""The explorer and the proofs give the same verdicts; neither knows the other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agreement import disagreement, refuted
from family import FAMILY, MIXED, member
from mutants import Ones, mutant
from oracle.explore import explore
from profiles import draws, few

from primepar.errors import EmulationError
from primepar.partition import parse_sequence
from primepar.reference import emulate
from primepar.schedule import Program, lower
from primepar.verify.program import verify_program

SEQUENCES = ("", "K,N", "N,M", "K,P2x2", "P2x2,N", "P2x2,P2x2", *MIXED)
SEEDS = range(draws(600))


def program(*ranks: list[dict[str, Any]]) -> Program:
    head = {"format": "primepar-program", "version": 1, "ranks": len(ranks)}
    return msgspec.convert({**head, "programs": ranks}, Program)


@few
@pytest.mark.parametrize(("name", "sides"), [case for case in FAMILY if member(*case).ranks <= 27])
def test_a_registered_primitive_is_right_for_both(name: str, sides: tuple[int, ...]) -> None:
    lowered = lower(member(name, sides))
    assert verify_program(lowered).verdict == "proved"
    assert explore(lowered).failed == frozenset()


@few
@pytest.mark.parametrize("text", SEQUENCES)
def test_a_sequence_is_right_for_both(text: str) -> None:
    lowered = lower(parse_sequence(text))
    assert verify_program(lowered).verdict == "proved"
    assert explore(lowered).failed == frozenset()


def test_mutants_of_every_kind_are_refuted_by_both_or_by_neither() -> None:
    differ, kinds = {}, []
    for seed in SEEDS:
        program, buffered = mutant(seed), seed % 7 == 0
        explored = explore(program, buffered=buffered)
        differ[seed] = disagreement(verify_program(program, buffered=buffered), explored)
        kinds.append(explored.failed)
    assert {seed: what for seed, what in differ.items() if what} == {}
    shares = Counter(name for failed in kinds for name in failed)
    assert 1 / 6 < sum(not failed for failed in kinds) / len(SEEDS) < 2 / 3
    for name in ("coverage", "placement", "completion", "alignment", "deadlock-freedom", "races"):
        assert shares[name] > len(SEEDS) / 20
    assert min(shares["memory"], shares["traffic"]) > len(SEEDS) / 120


def emulates(program: Program) -> bool:
    try:
        emulate(program, [Ones() for _ in range(program.ranks)])
    except EmulationError:
        return False
    return True


def test_the_emulator_runs_the_mutants_that_are_proved_and_no_others() -> None:
    """Only those with `final` and names that mean something: of the others it asks other things.

    The emulator does not check what a program states that it holds and sends.
    """
    programs = {seed: mutant(seed) for seed in SEEDS if seed % 3 == 0}
    asked = {seed: program for seed, program in programs.items() if program.final is not None}
    counted = {"memory", "traffic"}
    proved = {
        seed for seed, program in asked.items() if refuted(verify_program(program)) <= counted
    }
    assert {seed for seed, program in asked.items() if emulates(program)} == proved
    assert len(asked) / 6 < len(proved) < len(asked) * 5 / 6


def test_without_races_all_interleavings_end_alike_as_the_proof_takes_for_granted() -> None:
    looked_at = 0
    for seed in SEEDS[:150]:
        program = mutant(seed)
        once = explore(program)
        if sum(map(len, program.programs)) > 14 or "races" in once.failed:
            continue
        every = explore(program, every=True)
        assert (every.finished, every.ends) == (True, 1), seed
        assert (every.failed, every.stuck) == (once.failed, once.stuck), seed
        looked_at += 1
    assert looked_at > 50


def test_a_block_overwritten_in_flight_ends_in_two_ways() -> None:
    overwritten = program(
        [
            {"op": "isend", "peer": 1, "block": "X", "request": "a"},
            {"op": "compute", "reads": ["Y"], "accumulates": "X"},
            {"op": "wait", "request": "a"},
        ],
        [{"op": "recv", "peer": 0, "block": "Z"}],
    )
    every = explore(overwritten, every=True)
    assert (every.ends, every.failed) == (2, frozenset({"races"}))


def test_an_exploration_reports_where_ranks_hang_and_whether_it_is_complete() -> None:
    dead = program(
        [
            {"op": "send", "peer": 1, "block": "X"},
            {"op": "recv", "peer": 1, "block": "Y"},
        ],
        [
            {"op": "barrier", "group": [1]},
            {"op": "send", "peer": 0, "block": "Y"},
            {"op": "recv", "peer": 0, "block": "X"},
        ],
    )
    seen = explore(dead, every=True)
    assert (seen.stuck, seen.failed) == (((0, 0), (1, 1)), frozenset({"deadlock-freedom"}))
    assert seen.finished
    assert not explore(dead, every=True, limit=2).finished
    assert explore(dead, buffered=True).failed == frozenset()


def test_the_explorer_shares_nothing_with_the_proofs_and_needs_no_z3() -> None:
    helpers = str(Path(__file__).parents[1] / "helpers")
    code = (
        f"import sys; sys.path.insert(0, {helpers!r}); import oracle.explore; "
        "names = ('z3', 'oracle.', 'primepar.verify', 'primepar.certify'); "
        "print(*sorted(name for name in sys.modules if name.startswith(names)))"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "oracle.machine" in loaded
    assert [name for name in loaded if not name.startswith("oracle.")] == []
