"""More of what the tests of device memory generate: `python tests/attack_offload.py 2000 SEED`.

Prints how many sizes of PatrickStar are proved and exact, how many of their spoilt transfers are
refuted, how many traces need as few transfers as a search, and how many programs with blocks on
hosts all readers agree on. Ends with 1 at the first one that differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from agreement import disagreement
from offload_cases import random_sizes, spoilt
from oracle.explore import explore
from phase_programs import built
from test_host_memory import hosted
from test_offload import fewest

from primepar import check
from primepar.passes.offload import furthest_next_use, least_recently_used, transfers
from primepar.verify import verify_program

MOST_SPOILT = 20
"""Of one program."""


def sizes(random: Random, counts: Counter[str]) -> None:
    """One program, and some of its mutants."""
    method = random_sizes(random)
    program = method.program()
    assert verify_program(program).verdict == "proved", method
    assert check(program).equal, method
    counts["sizes proved and exact"] += 1
    mutants = list(spoilt(program))
    for way, mutant, _ in random.sample(mutants, min(MOST_SPOILT, len(mutants))):
        assert verify_program(mutant).verdict == "refuted", (method, way)
        counts[f"{way}: refuted"] += 1


def trace(random: Random, counts: Counter[str]) -> None:
    """One trace of uses."""
    chunks, room = random.randint(2, 6), random.randint(2, 4)
    moments = [
        random.sample(range(chunks), random.randint(1, min(room, chunks)))
        for _ in range(random.randint(3, 9))
    ]
    known = transfers(moments, room, furthest_next_use)
    assert known == fewest(moments, room), moments
    assert known <= transfers(moments, room, least_recently_used), moments
    counts["traces with the fewest transfers"] += 1


def hosts(random: Random, counts: Counter[str]) -> None:
    """One program that begins and ends on hosts, spoilt or not."""
    fields = hosted(random)
    program = built(fields)
    report = verify_program(program)
    assert disagreement(report, explore(program)) == "", fields
    counts[f"programs with hosts, {report.verdict} by both"] += 1


def main(count: int, seed: int) -> None:
    """Run all three, `count` times."""
    random, counts = Random(seed), Counter[str]()
    for _ in range(count):
        sizes(random, counts)
        trace(random, counts)
        hosts(random, counts)
    for what, times in sorted(counts.items()):
        print(f"{times:7} {what}")


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["200", "0"][len(sys.argv) - 1 :])))
