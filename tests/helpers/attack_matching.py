"""Prover and explorer on random programs: `python tests/helpers/attack_matching.py 5000`.

Prints how many programs of each verdict there were, and every program on which the two differ.
"""

from __future__ import annotations

import sys
from collections import Counter

from oracle.explore import explore
from random_programs import ProgramMaker

from primepar.schedule import Program
from primepar.schedule.program_file import program_json
from primepar.verify import verify_program


def verdicts(program: Program, buffered: bool) -> tuple[str, str]:
    """The verdicts of the prover and of the explorer on deadlock-freedom."""
    proved = verify_program(program, buffered=buffered, only="deadlock-freedom")
    seen = explore(program, buffered=buffered, every=True)
    return proved["deadlock-freedom"].verdict, seen.verdict("deadlock-freedom")


def main(count: int, first: int = 0) -> None:
    """Attack `count` programs, from seed `first` on."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        program = ProgramMaker(seed).program()
        for buffered in (False, True):
            prover, explorer = verdicts(program, buffered)
            counts[f"{'buffered' if buffered else 'rendezvous'} {prover}"] += 1
            if prover != explorer:
                counts["different"] += 1
                print(f"seed {seed} buffered={buffered}: {prover}, {explorer}")
                print(program_json(program))
    for text, number in sorted(counts.items()):
        print(f"{number:7} {text}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
