"""Which properties have no meaning without others: never *proved* where the data may be wrong."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import msgspec
import pytest

from primepar.partition import PrimePar
from primepar.schedule import Program
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.properties import BASES, PROPERTIES, Verdict, missing_base
from primepar.verify import verify_primitive, verify_program
from primepar.verify.report import PropertyResult, Report

WRONG = Path(__file__).parents[1] / "wrong"
ALONE: tuple[Verdict, ...] = ("proved", "refuted", "unknown")


def verdicts(report: Report) -> dict[str, str]:
    return {result.name: result.verdict for result in report.properties}


def test_a_property_needs_all_that_its_bases_need() -> None:
    """So that one look at the bases is enough."""
    assert set(BASES) <= set(PROPERTIES)
    for name, bases in BASES.items():
        assert name not in bases
        for base in bases:
            assert set(BASES.get(base, ())) <= set(bases)


@pytest.mark.parametrize(("own", "base"), list(product(ALONE, ALONE)))
def test_what_needs_another_is_not_asked_unless_it_is_refuted(own: Verdict, base: Verdict) -> None:
    given: dict[str, Verdict] = {"placement": base, "completion": own, "traffic": own}
    asked = own == "refuted" or base == "proved" or own == base == "unknown"
    assert missing_base("completion", given) == (None if asked else "placement")
    assert missing_base("placement", given) is missing_base("traffic", given) is None
    report = Report.of("x", [PropertyResult(name, each, 0.0) for name, each in given.items()])
    assert verdicts(report) == given | ({} if asked else {"completion": "not asked"})
    sums_up = "refuted" if "refuted" in (own, base) else "unknown"
    assert report.verdict == ("proved" if own == base == "proved" else sums_up)


def test_where_a_block_is_wrong_no_sum_is_proved() -> None:
    report = verify_program(wrong_program("wrong-block-sent"))
    assert verdicts(report) == {
        "coverage": "proved",
        "placement": "refuted",
        "completion": "not asked",
        "deadlock-freedom": "proved",
        "races": "proved",
    }
    assert report["completion"].reason == "placement is refuted, so that a sum has no meaning"


def test_with_a_race_no_block_is_proved_to_hold_anything() -> None:
    report = verify_program(wrong_program("read-before-arrival"))
    left = {name for name, verdict in verdicts(report).items() if verdict == "not asked"}
    assert left == {"placement", "completion"}
    assert report["placement"].reason == (
        "races is refuted, so that what a block holds has no meaning"
    )


def test_nor_is_anything_behind_a_deadlock() -> None:
    report = verify_program(wrong_program("dropped-message"))
    left = {name for name, verdict in verdicts(report).items() if verdict == "not asked"}
    assert left == {"placement", "completion"}


def test_nor_is_a_sum_of_a_primitive_that_starts_with_other_weights() -> None:
    class Careless(PrimePar):
        def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
            return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)

    found = verdicts(verify_primitive(Careless()))
    assert (found["alignment"], found["completion"]) == ("refuted", "not asked")


def wrong_program(name: str) -> Program:
    return msgspec.json.decode((WRONG / f"{name}.json").read_bytes(), type=Program)
