"""`make attack`: the prover of primitives for all sides against generated maps and an oracle.

The oracle calls each map as plain Python on small meshes. The command ends with 1 if a map is
proved and wrong, refuted and right, or ends in a traceback; if a right map of the language is
refused; or if more than 3 % of the right ones are unknown. A map that is refuted and right on small
meshes is looked at on larger ones before it counts. What is proved of a map outside the language is
the expression that was read when it was loaded: one that is wrong only later, or above side 3, is
listed. What was scored is kept in `out/attack.jsonl`: a run that was stopped goes on from there,
while the code is the same. Sources of what is bad are in `out/attack`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import msgspec
from attack_maps import NAME, Map, generated
from attack_oracle import Ruling, oracle
from long_runs import Store, fingerprint, judged

from primepar.api.target import load_primitive
from primepar.errors import PrimeParError
from primepar.verify import verify_primitive

VERDICTS = ("proved", "refuted", "unknown", "refused", "crashed")
RULINGS = ("right", "wrong", "open")
MOST_UNKNOWN = 0.03


class Scored(msgspec.Struct, frozen=True):
    """One map with the ruling of the oracle and the verdict of the prover."""

    key: int
    """The seed."""
    method: str
    template: str
    in_language: bool
    has_threshold: bool
    ruling: str
    fails: str
    """What the oracle finds wrong, if anything."""
    sides: tuple[int, ...]
    """The first mesh on which it is wrong."""
    is_early: bool
    """Whether it is in the language, or wrong on a mesh up to side 3 when it is first called."""
    verdict: str
    """Of the proof; `refused` where loading or proving raises an error of ours."""
    refuted: tuple[str, ...]
    message: str
    """Why it is unknown or refused, or how it crashed."""
    seconds: float
    """CPU of loading and proving."""

    @property
    def bad(self) -> str | None:
        """How prover and oracle contradict each other; None if they do not."""
        match self.verdict, self.ruling:
            case "crashed", _:
                return "crashed"
            case "proved", "wrong":
                return "proved-wrong" if self.is_early else "proved-late"
            case "refuted", "right":
                return "refuted-right"
            case "refused", "right" if self.in_language:
                return "refused-right"
            case "unknown", "right" | "wrong" if self.in_language:
                return f"unknown-{self.ruling}"
        return None


def proved(made: Map, timeout: float) -> tuple[str, tuple[str, ...], str]:
    """The verdict of the proof of a map, the properties that are refuted, and a reason."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "attack.py"
        path.write_text(made.source, encoding="utf-8")
        try:
            report = verify_primitive(load_primitive(f"{path}:{NAME}"), NAME, timeout)
        except PrimeParError as error:
            return "refused", (), str(error).replace(folder, "")
        except Exception as error:
            return "crashed", (), f"{type(error).__name__}: {error}"
    refuted = tuple(result.name for result in report.properties if result.verdict == "refuted")
    open_ = (result.reason for result in report.properties if result.verdict == "unknown")
    return report.verdict, refuted, next((reason for reason in open_ if reason), "")


def ruled(made: Map, *, larger: bool = False) -> Ruling:
    """The ruling of the oracle; what is no function may be right by chance, and is open then."""
    ruling = oracle(made.source, NAME, twice=not made.in_language, larger=larger)
    is_chance = made.is_right is False and ruling.verdict == "right"
    return ruling._replace(verdict="open") if is_chance else ruling


def score(seed: int, timeout: float = 30.0) -> Scored:
    """Have the oracle and the prover decide one map."""
    made = generated(seed)
    ruling, clock = ruled(made), process_time()
    verdict, refuted, message = proved(made, timeout)
    seconds = process_time() - clock
    if verdict == "refuted" and ruling.verdict == "right":
        ruling = ruled(made, larger=True)
    return Scored(
        seed, made.method, made.template, made.in_language, made.has_threshold,
        ruling.verdict, ruling.property, ruling.sides, is_early(made), verdict, refuted, message,
        seconds,
    )  # fmt: skip


def is_early(made: Map) -> bool:
    """Whether whoever compares a map with an expression up to side 3 can see what is wrong."""
    return made.in_language or oracle(made.source, NAME, longest=3).verdict == "wrong"


def main() -> int:
    """Print the tables; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=10_000, help="generated maps")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for each proof")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--kept", type=Path, default=Path("out/attack.jsonl"))
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.maps)
    with Store[Scored](options.kept, fingerprint(), Scored) as store:
        new = [seed for seed in seeds if seed not in store.kept]
        one = partial(score, timeout=options.timeout)
        for answers in judged("maps", one, new, options.jobs, len(seeds)):
            store.keep([answers])
        scored = [store.kept[seed] for seed in seeds]
    keep_sources(scored, options.kept.with_suffix(""))
    return report(scored)


def keep_sources(scored: Iterable[Scored], folder: Path) -> None:
    """Write every map that is bad, with the ruling and the verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.py"):
        path.unlink()
    for score in scored:
        if score.bad:
            comment = (
                f"# oracle: {score.ruling} {score.fails} {score.sides}\n# prover: {score.verdict}"
            )
            comment += f" {' '.join(score.refuted)} {' '.join(score.message.split())}\n"
            text = comment + generated(score.key).source
            (folder / f"{score.bad}-{score.key}.py").write_text(text, encoding="utf-8")


def report(scored: list[Scored]) -> int:
    """Print what was found, and give the exit code."""
    inside = [score for score in scored if score.in_language]
    table("method", inside, lambda score: score.method)
    table("template", inside, lambda score: score.template)
    table("outside the language", [score for score in scored if not score.in_language],
          lambda score: score.template)  # fmt: skip
    bad = Counter(score.bad for score in scored)
    right = sum(score.ruling == "right" for score in inside)
    share = bad["unknown-right"] / right if right else 0.0
    for name in ("proved-wrong", "refuted-right", "refused-right", "crashed"):
        print(f"{name.replace('-', ' and ')}: {bad[name]}")
    with_threshold = sum(score.ruling == "right" and score.has_threshold for score in inside)
    print(f"right: {right} of {len(inside)} in the language, {with_threshold} with thresholds")
    print(f"unknown and right: {bad['unknown-right']} of {right} = {100 * share:.2f} %")
    print(f"unknown and wrong: {bad['unknown-wrong']}")
    print(f"outside the language, proved, wrong later or on larger sides: {bad['proved-late']}")
    print(f"CPU of the proofs: {sum(score.seconds for score in scored):.0f} s")
    for score in scored:
        if score.bad:
            print(
                f"{score.bad} {score.key}, {score.method}, {score.template}: {score.message[:160]}"
            )
    wrong = sum(bad[name] for name in ("proved-wrong", "refuted-right", "refused-right", "crashed"))
    return 1 if wrong or share > MOST_UNKNOWN else 0


def table(title: str, scored: list[Scored], key: Callable[[Scored], str]) -> None:
    """For each ruling of the oracle how many ended with each verdict."""
    columns = [(ruling, verdict) for ruling in RULINGS for verdict in VERDICTS]
    counts = Counter((key(score), score.ruling, score.verdict) for score in scored)
    totals = Counter((score.ruling, score.verdict) for score in scored)
    columns = [column for column in columns if totals[column]]
    names = sorted({key(score) for score in scored})
    width = max(map(len, (title, *names)))
    print(f"{title:{width}}" + "".join(f"{' '.join(score):>16}" for score in columns))
    for name in names:
        print(f"{name:{width}}" + "".join(f"{counts[name, *score]:16}" for score in columns))
    print(f"{'all':{width}}" + "".join(f"{totals[score]:16}" for score in columns) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
