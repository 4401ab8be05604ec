"""Attacks on the proofs: `python tests/helpers/attack.py NAME...`, with the names of `ATTACKS`.

An attack is a module with `tasks`, and a function that decides each. Where two readers contradict
each other, it is listed, and the command ends with 1. It does so too if a share is above its limit.
What was decided is kept in `out/attack`: a run that was stopped goes on from there, while the code
is the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from long_runs import Store, TaskResult, fingerprint, judged


class Limit(NamedTuple):
    """Part of the sum of a column that another one is, and the most that it may be."""

    text: str
    part: str
    whole: str
    most: float = 1.0


class AttackModule(NamedTuple):
    """The module, how many tasks it is asked for, and what is printed besides the tables."""

    module: str
    usual: int
    shares: tuple[Limit, ...] = ()
    tasks: str = "tasks"
    decide: str = "decide"


ATTACKS = {
    "mutants": AttackModule("mutation_oracle", 4, (
        Limit("harmful caught / harmful", "caught", "harmful"),
        Limit("harmless refused / harmless", "refused", "harmless"),
    )),
    "programs": AttackModule("mutation_oracle", 10_000, (), "programs", "agree_on"),
    "maps": AttackModule("attack_score", 10_000, (
        Limit("unknown / right", "unknown", "right", 0.03),
    )),
    "certificates": AttackModule("attack_certificates", 2_000),
    "program-certificates": AttackModule("program_certificates", 2_000),
    "scales": AttackModule("attack_scales", 3_000),
    "transports": AttackModule("attack_transport", 3_000),
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Attack, print what became of it, and give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=ATTACKS, metavar="NAME")
    parser.add_argument("--count", type=int, help="as many tasks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--kept", type=Path, default=Path("out/attack"), help="folder of results")
    options = parser.parse_args(words)
    wrong = False
    for name in options.names:
        attack = ATTACKS[name]
        module = import_module(attack.module)
        tasks = getattr(module, attack.tasks)(options.count or attack.usual)
        with Store(options.kept / f"{name}.jsonl", fingerprint()) as store:
            new = [task for task in tasks if str(task) not in store.kept]
            decide = getattr(module, attack.decide)
            for task, result in judged(name, decide, new, options.jobs, len(tasks)):
                store.keep(task, result)
            kept = {str(task): store.kept[str(task)] for task in tasks}
        wrong |= report(name, attack, kept)
    return int(wrong)


def report(name: str, attack: AttackModule, kept: dict[str, TaskResult | None]) -> bool:
    """Print the tables, the shares and what is noted; returns whether something is wrong."""
    numbered = {task: result for task, result in kept.items() if result is not None}
    distinct = {result.same or task: result for task, result in numbered.items()}
    results = distinct.values()
    for title in dict.fromkeys(title for result in results for title in result.rows):
        table(title, [result for result in results if title in result.rows])
    totals = summed(results)
    too_many = False
    for share in attack.shares:
        part, whole = totals[share.part], totals[share.whole]
        too_many |= part > share.most * whole
        percent = f" = {100 * part / whole:g} %" if whole else ""
        print(f"{share.text}: {part:g} / {whole:g}{percent}")
    for task, result in numbered.items():
        if result.note:
            print(f"{'WRONG ' * result.is_wrong}{task}: {result.note}")
    wrong = sum(result.is_wrong for result in results)
    print(f"{name}: {wrong} of {len(results)} are wrong\n")
    return wrong > 0 or too_many


def summed(results: Iterable[TaskResult]) -> dict[str, float]:
    """The sum of each column."""
    totals = defaultdict[str, float](float)
    for result in results:
        for column, number in result.numbers.items():
            totals[column] += number
    return totals


def table(title: str, results: list[TaskResult]) -> None:
    """Print a line for each row, and the sum."""
    totals = summed(results)
    names = list(dict.fromkeys(result.rows[title] for result in results))
    first = max(20, *map(len, names))
    wide = {column: max(10, len(column) + 2) for column in totals}
    print(f"{title:{first}}" + "".join(f"{column:>{size}}" for column, size in wide.items()))
    for name in (*names, None):
        of_row = totals if name is None else summed(r for r in results if r.rows[title] == name)
        shown = (f"{of_row[column]:{size}{'.1f' if column == 'seconds' else 'g'}}"
                 for column, size in wide.items())  # fmt: skip
        print(f"{name or 'all':{first}}{''.join(shown)}")
    print()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
