"""Sequences with primitives of a user's own file, as `train --plan` takes them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from command import run

from primepar.api.target import resolve
from primepar.distributed.training.alike import facts_of
from primepar.distributed.training.data import Text
from primepar.distributed.training.settings import Settings
from primepar.distributed.training.settings_plan import plan_of
from primepar.errors import PrimeParError
from primepar.partition import parse_sequence
from primepar.partition.primitive_file import files_of
from primepar.schedule import Sequence

COLUMNS = """from primepar import Primitive, where


class Columns2(Primitive):
    axes = ("d",)

    def steps(self, s):
        return 1

    def forward(self, d, t, s):
        return dict(K=d)
"""
SOURCE = f"""{COLUMNS}

class Mine(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + t) % s, K=c)

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)


@pytest.mark.parametrize(
    ("text", "written", "ranks"),
    [
        ("mine.py:Mine2x2", "mine.py:Mine2x2", 4),
        ("M2, mine.py:Mine2x2", "M2,mine.py:Mine2x2", 8),
        ("mine.py:Columns2", "mine.py:Columns22", 2),
        ("mine.py:Columns23,K2", "mine.py:Columns23,K2", 6),
        ("mine.py:Mine12x12", "mine.py:Mine12x12", 144),
    ],
)
def test_the_text_of_a_sequence_names_it_again(text: str, written: str, ranks: int) -> None:
    sequence = parse_sequence(text)
    assert (str(sequence), sequence.ranks) == (written, ranks)
    assert str(parse_sequence(written)) == written
    assert files_of(written) == [Path("mine.py")]


def test_a_file_with_one_primitive_needs_no_name() -> None:
    Path("one.py").write_text(COLUMNS)
    assert str(parse_sequence("one.py,K2")) == "one.py:Columns22,K2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mine.py:Mine",
            "sequence 'mine.py:Mine': expected 2 lengths after mine.py:Mine, equal along r and c, "
            "like mine.py:Mine2x2, got 'mine.py:Mine'",
        ),
        (
            "K,mine.py:Mine3",
            "sequence 'K,mine.py:Mine3': expected 2 lengths after mine.py:Mine, equal along r and "
            "c, like mine.py:Mine2x2, got 'mine.py:Mine3': write mine.py:Mine3x3",
        ),
        (
            "mine.py:Mine2x3",
            "sequence 'mine.py:Mine2x3': expected 2 lengths after mine.py:Mine, equal along r and "
            "c, like mine.py:Mine2x2, got 'mine.py:Mine2x3'",
        ),
        (
            "mine.py:Nine2x2",
            "mine.py:Nine: expected a primitive of mine.py, got no class Nine: write mine.py:Mine",
        ),
        ("M2,mime.py:Mine2x2", "mime.py: expected a Python file, found none: write mine.py"),
    ],
)
def test_a_misspelt_sequence_is_refused(text: str, message: str) -> None:
    with pytest.raises(PrimeParError) as caught:
        parse_sequence(text)
    assert str(caught.value) == message


def test_an_x_in_the_name_of_a_file_is_no_length() -> None:
    Path("max.py").write_text(SOURCE)
    with pytest.raises(PrimeParError) as caught:
        parse_sequence("max.py:Mine3")
    assert str(caught.value) == (
        "sequence 'max.py:Mine3': expected 2 lengths after max.py:Mine, equal along r and c, like "
        "max.py:Mine2x2, got 'max.py:Mine3': write max.py:Mine3x3"
    )


def test_other_commands_take_such_a_sequence() -> None:
    assert isinstance(resolve("mine.py:Mine2x2"), Sequence)
    done = run("check", "M2,mine.py:Mine2x2")
    assert (done.code, done.err) == (0, "")


def test_a_plan_may_name_a_primitive_of_a_file() -> None:
    settings = Settings(plan="mine.py:Mine2x2")
    plan = plan_of(settings, 4)
    assert plan.sequences["blocks.0.qkv"] == "mine.py:Mine2x2"
    assert plan.sequence("blocks.0.qkv").ranks == 4


def test_a_plan_with_a_misspelt_one_is_refused_with_its_place() -> None:
    settings = Settings(plan="mine.py:Mine2x2")
    plan = msgspec.to_builtins(plan_of(settings, 4))
    plan["sequences"]["head"] = "mine.py:Nine2x2"
    Path("plan.json").write_text(json.dumps(plan))
    done = run("verify", "plan.json")
    assert done == (
        2,
        "",
        'primepar: error: plan.json: $.sequences["head"]: mine.py:Nine: expected a primitive of '
        "mine.py, got no class Nine: write mine.py:Mine\n",
    )


def test_ranks_compare_the_content_of_the_file() -> None:
    settings = Settings(plan="mine.py:Mine2x2")
    text = Text.of("letters", bytes(range(200)) * 40, 4, 16)

    def facts() -> dict[str, str]:
        return facts_of(settings, plan_of(settings, 4), text)

    before = facts()
    assert before["primitives"] == facts()["primitives"] != "none"
    Path("mine.py").write_text(f"# Another file.\n{SOURCE}")
    assert {name for name, fact in facts().items() if fact != before[name]} == {"primitives"}


def test_a_file_that_changes_is_loaded_again() -> None:
    assert parse_sequence("mine.py:Columns22").grid["K"] == 2
    Path("mine.py").write_text(SOURCE.replace("dict(K=d)", "dict(M=d)"))
    assert parse_sequence("mine.py:Columns22").grid["K"] == 1
