"""Public cases and attention methods, changed: `python tests/helpers/attack_cases.py [COUNT]`.

Prover, explorer and emulator must agree on every changed program. Ends with 1 if two differ.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
from agreement import disagreement, refuted
from mutants import MUTATIONS, placed_somewhere
from oracle.explore import explore

from primepar.errors import ProgramError
from primepar.partition.ring_attention import RingAttention
from primepar.partition.ulysses import Ulysses
from primepar.preflight.cases import CASES
from primepar.reference.check import check_program
from primepar.schedule import Program
from primepar.verify import verify_program

LARGE = "depth-not-summed"
"""A case of eight ranks, which is left out."""


def programs() -> dict[str, Program]:
    """The programs that are changed: all of them are proved as they are."""
    sizes = {"heads": 2, "head_dim": 1}
    return {
        **{name: case.fixed for name, case in CASES.items() if name != LARGE},
        "ring-attention": RingAttention(devices=3, positions=3, **sizes).program(),
        "ulysses": Ulysses(devices=2, positions=2, **sizes).program(),
    }


def changed(name: str, program: Program, seed: int) -> Program | None:
    """The program after one or two random changes; None if they make none."""
    random = Random(f"{name} {seed}")
    fields = msgspec.json.decode(msgspec.json.encode(program))
    try:
        for _ in range(random.choice((1, 1, 2))):
            random.choice(MUTATIONS)(random, fields)
        mutant = msgspec.convert(fields, Program)
        placed_somewhere(mutant)
    except (msgspec.ValidationError, ProgramError):
        return None
    return mutant


def differences(program: Program, counts: Counter[str]) -> Iterator[str]:
    """Where two readers differ about a program."""
    report, equal = verify_program(program), check_program(program).equal
    counts[report.verdict] += 1
    difference = disagreement(report, explore(program))
    if difference:
        yield f"prover and explorer: {difference}"
    if report.verdict == "proved" and not equal:
        yield "prover and emulator: proved, and refused"
    if equal and refuted(report) - {"traffic", "memory"}:
        yield f"prover and emulator: equal, and refuted in {', '.join(refuted(report))}"


def main(seeds: int) -> int:
    """Change and compare; returns the exit code."""
    counts, wrong = Counter[str](), 0
    for name, program in programs().items():
        for seed in range(seeds):
            mutant = changed(name, program, seed)
            for difference in differences(mutant, counts) if mutant is not None else ():
                print(f"{name}, seed {seed}: {difference}")
                wrong += 1
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    print(f"{wrong} differences")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
