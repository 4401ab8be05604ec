"""`make mutants`: how many wrong programs and primitives are caught, and how many right refused.

The explorer and the emulator decide which mutants are harmful, and the proofs have to agree. Then
prover and explorer decide generated programs. It ends with 1 unless every harmful mutant is
refuted, every harmless one is proved, and the two agree on all generated programs. What was judged
is kept in `out/mutants.jsonl`: a run that was stopped goes on from there, while the code is the
same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from long_runs import Store, fingerprint, judged
from mutation_oracle import Generated, Judged, agree_on, decide, tasks

from primepar.verify.report import PROPERTIES

COLUMNS = ("mutants", "harmful", "caught", "harmless", "refused", "seconds")


def main() -> int:
    """Print the tables; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=4, help="programs of each way and method")
    parser.add_argument("--most-maps", type=int, default=3, help="maps of each way and method")
    parser.add_argument("--programs", type=int, default=10_000, help="generated programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--kept", type=Path, default=Path("out/mutants.jsonl"))
    options = parser.parse_args()
    with Store[Judged | Generated](options.kept, fingerprint(), Judged | Generated) as store:
        asked = tasks(options.most, options.most_maps)
        new = [mutant for mutant in asked if mutant[:3] not in store.kept]
        for one in judged("mutants", decide, new, options.jobs, len(asked)):
            store.keep([one])
        seeds = range(options.programs)
        rest = [seed for seed in seeds if seed not in store.kept]
        for seen in judged("generated programs", agree_on, rest, options.jobs, len(seeds)):
            store.keep([seen])
        mutants = distinct(
            [
                one
                for one in map(store.kept.get, (task[:3] for task in asked))
                if isinstance(one, Judged)
            ]
        )
        generated = [one for one in map(store.kept.get, seeds) if isinstance(one, Generated)]
    report(mutants)
    agreement(generated)
    right = all(mutant.is_right for mutant in mutants) and not any(
        mutant.differ for mutant in generated
    )
    return 0 if right else 1


def distinct(mutants: list[Judged]) -> list[Judged]:
    """Those that no other one is equal to."""
    return list({(mutant.method, mutant.digest): mutant for mutant in mutants}.values())


def report(mutants: list[Judged]) -> None:
    """The tables of ways and of methods, the score, and what went wrong."""
    table("way", mutants, lambda mutant: mutant.way)
    table("method", mutants, lambda mutant: mutant.method)
    harmful, caught, harmless, refused = counts(mutants)
    print(f"harmful caught / harmful: {share(caught, harmful)}")
    print(f"harmless refused / harmless: {share(refused, harmless)}")
    for mutant in mutants:
        if not mutant.is_right:
            failed, refuted = " ".join(mutant.failed) or "nothing", " ".join(mutant.refuted)
            print(f"WRONG {mutant.method}, {mutant.way}, {mutant.where}: {failed} should fail; "
                  f"{mutant.verdict} {refuted} {mutant.split}")  # fmt: skip


def share(part: int, whole: int) -> str:
    """`3 / 4 = 75 %`."""
    return f"{part} / {whole}" + (f" = {100 * part / whole:g} %" if whole else "")


def counts(mutants: list[Judged]) -> tuple[int, int, int, int]:
    """Harmful ones, those of them that are caught, harmless ones, those that are refused."""
    harmful = [mutant for mutant in mutants if mutant.harmful]
    caught = sum(mutant.verdict == "refuted" for mutant in harmful)
    refused = sum(mutant.verdict != "proved" for mutant in mutants if not mutant.harmful)
    return len(harmful), caught, len(mutants) - len(harmful), refused


def table(title: str, mutants: list[Judged], key: Callable[[Judged], str]) -> None:
    """One row for each way or method, and the sum."""
    print(f"{title:20}" + "".join(f"{column:>10}" for column in COLUMNS))
    for name in dict.fromkeys(map(key, mutants)):
        row(name, [mutant for mutant in mutants if key(mutant) == name])
    row("all", mutants)
    print()


def row(name: str, mutants: list[Judged]) -> None:
    """How many there are, and how they were judged."""
    numbers = (len(mutants), *counts(mutants))
    seconds = sum(mutant.seconds for mutant in mutants)
    print(f"{name:20}" + "".join(f"{number:10}" for number in numbers) + f"{seconds:10.1f}")


def agreement(generated: list[Generated]) -> None:
    """Print how prover and explorer agree on generated programs."""
    verdicts = Counter(program.verdict for program in generated)
    failed = Counter(name for program in generated for name in program.failed)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"\n{len(generated)} generated programs: {counts}")
    print("of these fail " + ", ".join(f"{failed[name]} {name}" for name in PROPERTIES))
    differ = [f"{program.seed} ({program.differ})" for program in generated if program.differ]
    print(f"prover and explorer differ on {', '.join(differ) or 'none'}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
