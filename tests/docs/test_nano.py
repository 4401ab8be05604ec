"""The idea in one file: it is short, prints what its page shows, and agrees with the library."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import primepar
from primepar.partition import parse_sequence
from primepar.schedule.operators import PHASES
from primepar.schedule.program import ISend

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tutorials" / "nano.py"
PAGE = ROOT / "docs" / "nano.md"


@pytest.fixture(scope="module")
def nano() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nano", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_one_short_file_of_numpy_and_z3() -> None:
    source = SCRIPT.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)]
    names = {alias.name for node in imported for alias in node.names}
    assert names == {"numpy", "z3"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(source)))


def test_it_prints_what_its_page_shows(
    nano: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    nano.main()
    shown = re.search(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out.strip("\n") == shown[1].strip("\n")
    assert '--8<-- "tutorials/nano.py"' in PAGE.read_text()


@pytest.mark.parametrize("side", [1, 2, 3, 5])
def test_its_blocks_and_its_moves_are_those_of_the_library(nano: ModuleType, side: int) -> None:
    sequence = parse_sequence(f"P{side}x{side}")
    for phase in PHASES:
        slices = getattr(nano.PrimePar(), phase)
        for rank, (r, c) in enumerate(sequence.coordinates):
            for t in range(side):
                expected = {dim: (index,) for dim, index in slices(r, c, t, side).items()}
                assert sequence.slices(phase, rank, t) == expected
    programs = primepar.lower(sequence).programs
    messages = sum(isinstance(node, ISend) for nodes in programs for node in nodes)
    rng = nano.np.random.default_rng(1)
    tensors = (rng.integers(-9, 10, (side, side)) for _ in range(3))
    assert nano.train(nano.PrimePar(), side, *tensors)[3] == messages


def test_what_is_proved_is_computed_and_what_is_refuted_is_not(
    nano: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = {
        kind.__name__: [nano.emulate(kind(), side) for side in range(1, 6)]
        for kind in (nano.PrimePar, nano.Skipping, nano.Careless)
    }
    assert equal == {
        "PrimePar": [True] * 5,
        "Skipping": [True, False, True, False, True],
        "Careless": [True, False, False, False, False],
    }
    capsys.readouterr()
    verdicts = [nano.verify(kind()) for kind in (nano.PrimePar, nano.Skipping, nano.Careless)]
    assert verdicts == [True, False, False]
    assert "20 of 20 properties proved" in capsys.readouterr().out


def test_a_map_out_of_range_and_one_with_copies_are_refuted(
    nano: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def beyond(self: object, r: int, c: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r, N=(r + c + t) % s, K=c + 1)

    def far(self: object, r: int, c: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r, N=(r + 5 * c + t) % s, K=c)

    def copies(self: object, r: int, c: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r, N=t, K=c)

    printed = {}
    for forward in (beyond, far, copies):
        kind = type(forward.__name__, (nano.PrimePar,), {"forward": forward})
        assert not nano.verify(kind())
        printed[forward.__name__] = capsys.readouterr().out
    assert "refuted at s = 1: range of forward" in printed["beyond"]
    assert "range of forward" in printed["far"]
    assert "refuted at s = 2: one holder of I in forward" in printed["copies"]


def test_it_needs_nothing_of_the_library(nano: ModuleType) -> None:
    assert "primepar" not in {name.partition(".")[0] for name in vars(nano)}
    assert nano.__name__ not in sys.modules
