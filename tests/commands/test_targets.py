"""A TARGET is a registered name, a sequence, a class in a file, or a program file."""

from __future__ import annotations

from pathlib import Path

import pytest

from primepar.api.target import resolve
from primepar.errors import PlanError, PrimitiveError, ProgramError, TargetError

MINE = """
from dataclasses import dataclass
from primepar import Primitive

@dataclass
class Helper:
    side: int

class Rows(Primitive):
    axes = ("d",)
    def steps(self, s): return Helper(1).side
    def forward(self, d, t, s): return dict(M=d)

class Argument(Rows):
    def __init__(self, side): pass

class Raises(Rows):
    def __init__(self): raise RuntimeError("no")

class OneName(Rows):
    axes = ("d")

class Row(Rows):
    axes = "row"

class Number(Rows):
    axes = 2

class Sides(Rows):
    axes = {"d": 2}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return f"{tmp_path}/mine.py"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sequences": {}}', "Object missing required field `format`: write "
         '"format": "primepar-plan"'),
        ('{"ranks": 2}', "Object missing required field `format`"),
    ],
    ids=["plan", "program"],
)  # fmt: skip
def test_a_file_of_no_known_format_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises((PlanError, ProgramError)) as caught:
        resolve(str(tmp_path / "x.json"))
    assert str(caught.value) == f"{tmp_path}/x.json: {message}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Argument", "expected a class that can be called without arguments, got TypeError: "
         "Argument.__init__() missing 1 required positional argument: 'side'"),
        ("Raises", "expected a class that can be called without arguments, got RuntimeError: no"),
        ("OneName", """expected axes like ("r", "c") or {"r": "q", "e": "d"}, got 'd'"""
         """: write ("d",)"""),
        ("Row", """expected axes like ("r", "c") or {"r": "q", "e": "d"}, got 'row'"""
         """: write ("row",)"""),
        ("Number", """expected axes like ("r", "c") or {"r": "q", "e": "d"}, got 2"""),
        ("Sides", """expected axes like ("r", "c") or {"r": "q", "e": "d"}, got {'d': 2}"""),
    ],
)  # fmt: skip
def test_a_class_that_is_no_primitive_is_refused(mine: str, name: str, message: str) -> None:
    with pytest.raises(PrimitiveError) as caught:
        resolve(f"{mine}:{name}")
    assert str(caught.value) == f"{mine}:{name}: {message}"


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (":None", "expected a primitive of FILE, got no class None: write FILE:Rows"),
        (":Helper", "expected a class that derives from primepar.Primitive, got one that does not: "
         "write class Helper(Primitive)"),
        (":Primitive", "expected a class that derives from primepar.Primitive, got one that does "
         "not: write class Primitive(Primitive)"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_there_is_answered_with_those_that_are(
    tmp_path: Path, suffix: str, message: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from primepar import Primitive\nclass Rows(Primitive): ...\nclass Helper: ...")
    with pytest.raises(TargetError) as caught:
        resolve(f"{path}{suffix}")
    assert str(caught.value) == f"{path}{suffix}: {message.replace('FILE', str(path))}"


@pytest.mark.parametrize("suffix", ["", ":"])
def test_a_file_with_one_primitive_names_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from primepar.partition import PrimePar\nclass Mine(PrimePar): ...\nclass Helper: ..."
    )
    assert type(resolve(f"{path}{suffix}")).__name__ == "Mine"


def test_a_file_without_a_primitive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("")
    with pytest.raises(TargetError) as caught:
        resolve(f"{tmp_path}/none.py:Rows")
    assert str(caught.value) == (
        f"{tmp_path}/none.py:Rows: expected a class that derives from primepar.Primitive, got none "
        f"in {tmp_path}/none.py: write class Rows(Primitive)"
    )
