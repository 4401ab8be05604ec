"""`make mutants`: how many wrong programs and primitives are caught, and how many right refused.

Every mutant is judged by the explorer, by the emulator where it applies, and by the proofs. It ends
with 1 unless every harmful mutant is refuted and no harmless one is, and unless prover and explorer
agree on all generated programs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing import Pool
from pathlib import Path
from time import perf_counter

from agreement import disagreement
from mutants import mutant
from mutation_judge import Judged, changes, judge, tasks
from mutation_local import WAYS

from primepar.schedule import save_program
from primepar.verify.explorer import explore
from primepar.verify.program_proof import verify_program

HEAD = (
    f"{'':20} {'mutants':>8} {'harmful':>8} {'caught':>8} {'harmless':>9} {'refused':>8} {'s':>7}"
)


def main() -> int:
    """Print the tables; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=6, help="mutants of each way and method")
    parser.add_argument("--programs", type=int, default=10_000, help="generated programs")
    parser.add_argument("--keep", type=Path, help="save one mutant of each way and method here")
    options = parser.parse_args()
    asked = tasks(options.most)
    with Pool(os.cpu_count()) as pool:
        judged = distinct(pool.imap(judge, asked, chunksize=4))
        report(judged)
        agreed = agreement(pool.imap(judged_seed, range(options.programs), chunksize=50))
    if options.keep:
        keep(judged, options.keep)
    return 0 if agreed and all(is_right(each) for each in judged) else 1


def distinct(judged: Iterable[Judged]) -> list[Judged]:
    """Those that no other one is equal to."""
    return list({(each.task.method, each.digest): each for each in judged}.values())


def is_right(each: Judged) -> bool:
    """Whether a mutant is refuted if it is harmful, and proved if it is not."""
    return each.verdict == ("refuted" if each.harmful else "proved") and not each.split


def report(judged: list[Judged]) -> None:
    """The tables of ways and of methods, and what went wrong."""
    table("way", judged, lambda each: each.task.way)
    table("method", judged, lambda each: each.task.method)
    for each in judged:
        if not is_right(each):
            failed = " ".join(sorted(each.failed)) or "nothing"
            print(f"WRONG {each.task.method}, {each.task.way}, {each.where}: {failed} fails, "
                  f"{each.verdict} {' '.join(sorted(each.refuted))} {each.split}")  # fmt: skip


def table(title: str, judged: list[Judged], key: Callable[[Judged], str]) -> None:
    """One row for each way or method, and the sum."""
    print(f"{title:20}{HEAD}")
    for name in dict.fromkeys(map(key, judged)):
        row(name, [each for each in judged if key(each) == name])
    row("all", judged)
    print()


def row(name: str, judged: list[Judged]) -> None:
    """How many there are, and how they were judged."""
    harmful = [each for each in judged if each.harmful]
    caught = sum(each.verdict == "refuted" for each in harmful)
    refused = sum(each.verdict != "proved" for each in judged if not each.harmful)
    seconds = sum(each.seconds for each in judged)
    print(f"{name:20} {len(judged):8} {len(harmful):8} {caught:8} {len(judged) - len(harmful):9} "
          f"{refused:8} {seconds:7.1f}", flush=True)  # fmt: skip


def judged_seed(seed: int) -> tuple[int, str, str]:
    """A generated program: its verdict, and where prover and explorer differ."""
    program, buffered = mutant(seed), seed % 7 == 0
    proved = verify_program(program, buffered=buffered)
    return seed, proved.verdict, disagreement(proved, explore(program, buffered=buffered))


def agreement(judged: Iterable[tuple[int, str, str]]) -> bool:
    """Tell how prover and explorer agree on generated programs."""
    start, verdicts, differ = perf_counter(), Counter[str](), []
    for seed, verdict, difference in judged:
        verdicts[verdict] += 1
        if difference:
            differ.append(f"{seed} ({difference})")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"generated programs: {counts}; prover and explorer differ on "
          f"{', '.join(differ) or 'none'}; {perf_counter() - start:.0f} s")  # fmt: skip
    return not differ


def keep(judged: list[Judged], folder: Path) -> None:
    """Save the first harmful program of each way and method, its name saying what it breaks."""
    kept = set()
    for each in judged:
        task = each.task
        if task.way in WAYS and each.harmful and (task.way, task.method) not in kept:
            kept.add((task.way, task.method))
            parts = [task.way, task.method, "+".join(sorted(each.failed))]
            name = ".".join(part.replace(" ", "-") for part in parts) + ".json"
            save_program(changes(task.method, task.way, task.most)[task.number][1], folder / name)


if __name__ == "__main__":
    sys.exit(main())
