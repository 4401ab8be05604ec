"""Ideas in one file each: short, print what their page shows, and agree with the library."""

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
from primepar.partition.work_ranges import WorkSplit
from primepar.schedule import Linear, lower
from primepar.schedule.ledger import sent_by_ranks
from primepar.schedule.operators import PHASES
from primepar.schedule.program import ISend

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "nano.md"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tutorials" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nano() -> ModuleType:
    return loaded("nano")


FILES = {
    "nano": {"numpy", "z3"}, "nano_step": {"numpy"}, "nano_plan": {"numpy", "itertools", "math"},
    "nano_stream_k": {"numpy", "itertools"},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_it_is_one_short_file_and_prints_what_its_page_shows(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (ROOT / "tutorials" / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert imported == FILES[name]
    loaded(name).main()
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out.strip("\n") == shown[[*FILES].index(name)].strip("\n")
    assert f'--8<-- "tutorials/{name}.py"' in page


def test_the_file_of_stream_k_divides_as_the_library_and_sees_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream_k = loaded("nano_stream_k")
    for workers, tiles, iterations in ((4, 3, 4), (5, 7, 3), (9, 2, 2)):
        split = WorkSplit(workers, tiles, iterations)
        for worker in range(workers):
            parts = [*stream_k.parts(worker, workers, tiles, iterations)]
            assert parts == [(part.tile, part.start, part.stop) for part in split.parts[worker]]
    assert not stream_k.ends(4, 3, 4, range(4), 1)
    monkeypatch.setattr(stream_k, "piece", lambda worker, *sizes: (worker * 3, worker * 3 + 2))
    rng = stream_k.np.random.default_rng(0)
    I, W = rng.integers(-9, 10, (2, 4)), rng.integers(-9, 10, (4, 3))
    assert not stream_k.compare(I, W, (1, 1, 3), 3)


def test_the_file_of_a_plan_finds_the_least_of_all_and_prices_as_the_library() -> None:
    plan = loaded("nano_plan")
    for tokens, h in ((4, 16), (64, 16)):
        given = plan.costs(tokens, h)
        best, choices = plan.cheapest(given, 2)
        assert plan.price(choices, *given) == best
    for choice in plan.CHOICES:
        sequence = parse_sequence(",".join(f"{dim}{n}" for dim, n in choice.items() if n > 1))
        program = lower(sequence, Linear(M=16, N=16, K=64))
        assert {plan.operator_cost(choice, 16, 16, 64)} == {*sent_by_ranks(program)}


def test_the_file_of_a_step_has_the_gradients_of_one_device_and_needs_its_sums() -> None:
    step = loaded("nano_step")
    one, two = (step.Devices(count, step.initial()) for count in (1, 2))
    one.step(*step.batch())
    two.step(*step.batch())
    for name in one.weights[0]:
        assert step.np.allclose(one.whole(name), two.whole(name), rtol=0, atol=1e-12)
    two.all_reduce = lambda blocks: blocks[0]
    assert abs(one.step(*step.batch()) - two.step(*step.batch())) > 1e-3


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
