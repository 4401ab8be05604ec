"""The attack `maps`: the prover of primitives for all sides against generated maps and an oracle.

The oracle calls each map as plain Python on small meshes. It is wrong if a map is proved and wrong,
refuted and right, or ends in a traceback, or if a right map of the language is refused. A map that
is refuted and right on small meshes is looked at on larger ones before it counts. What is proved of
a map outside the language is the expression that was read when it was loaded: one that is wrong
only later, or above side 3, is listed and not wrong. So is one that is unknown.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from attack_maps import NAME, Map, generated
from attack_oracle import Ruling, oracle
from long_runs import TaskResult

from primepar.api.target import load_primitive
from primepar.errors import PrimeParError
from primepar.verify import verify_primitive

TIMEOUT = 30.0
"""Seconds for each proof."""


def tasks(count: int) -> range:
    """The seeds of the maps."""
    return range(count)


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


def decide(seed: int) -> TaskResult:
    """Have the oracle and the prover decide one map."""
    made = generated(seed)
    ruling, clock = ruled(made), process_time()
    verdict, refuted, message = proved(made, TIMEOUT)
    seconds = process_time() - clock
    if verdict == "refuted" and ruling.verdict == "right":
        ruling = ruled(made, larger=True)
    contradiction = contradicts(verdict, ruling.verdict, made.in_language, is_early(made))
    numbers = {f"{ruling.verdict} {verdict}": 1.0, "seconds": seconds}
    if made.in_language and ruling.verdict == "right":
        numbers |= {"right": 1, "unknown": int(verdict == "unknown")}
    rows = {"method": made.method, "template": made.template}
    note = f"{contradiction}, {made.method}, {made.template}: {ruling.property} {ruling.sides} "
    return TaskResult(
        rows if made.in_language else {"outside the language": made.template}, numbers,
        contradiction in WRONG, f"{note}{' '.join(refuted)} {message}" if contradiction else "",
    )  # fmt: skip


WRONG = ("crashed", "proved and wrong", "refuted and right", "refused and right")


def contradicts(verdict: str, ruling: str, in_language: bool, is_early: bool) -> str:
    """How prover and oracle contradict each other; what is not in `WRONG` is listed alone."""
    match verdict, ruling:
        case "crashed", _:
            return "crashed"
        case "proved", "wrong":
            return "proved and wrong" if is_early else "proved and wrong later"
        case "refuted", "right":
            return "refuted and right"
        case "refused", "right" if in_language:
            return "refused and right"
        case "unknown", "right" | "wrong" if in_language:
            return f"unknown and {ruling}"
    return ""


def is_early(made: Map) -> bool:
    """Whether whoever compares a map with an expression up to side 3 can see what is wrong."""
    return made.in_language or oracle(made.source, NAME, longest=3).verdict == "wrong"
