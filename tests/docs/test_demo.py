"""The demo runs, and fails where the two runs part or the bytes are others than the formula's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from warm import python

from primepar.distributed.training.log import StartRow, StepRow
from primepar.distributed.training.settings import BATCH, Settings

SCRIPT = Path(__file__).resolve().parents[2] / "tutorials" / "00_demo.py"
MODEL = Settings().model
START = StartRow(Settings(), "P2x2", 4, MODEL.parameters, 0, MODEL, BATCH)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(loss: float, sent: float = 0.0, number: int = 1) -> StepRow:
    return StepRow(number, loss, 1.0, 0.1, 100.0, (sent,) * 4, (8.0,) * 4)


def test_the_demo_holds_and_leaves_pictures_and_logs(tmp_path: Path, demo: ModuleType) -> None:
    done = python(SCRIPT, "--steps", "1", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "All of it held" in done.out
    before, _, after = done.out.partition("4. Trained on one process")
    assert "primepar: proved for every s >= 1" in before
    assert "careless.py:Careless: refuted" in before
    assert f"takes about {demo.estimate(1):.0f} s on two cores" in before
    assert "step 1/1" in after
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "careless.py", "four_processes.jsonl", "one_process.jsonl", "schedule.svg", "timeline.svg",
    ]  # fmt: skip
    for name in ("schedule.svg", "timeline.svg"):
        ElementTree.parse(tmp_path / "demo" / name)


@pytest.mark.parametrize("loss", [2.003, float("nan")])
def test_losses_that_part_fail_the_demo(loss: float, demo: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.compare_losses([step(3.0), step(2.0)], [step(3.0), step(loss)])
    assert caught.value.code == "demo: the losses of one and of four processes differ"
    demo.compare_losses([step(3.0), step(2.0)], [step(3.0), step(2.001)])


def test_a_run_that_is_cut_short_fails_the_demo(demo: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.compare_losses([step(3.0), step(2.0, number=2)], [step(3.0)])
    assert caught.value.code == "demo: the two runs did not do the same steps"


def test_a_byte_too_many_fails_the_demo(demo: ModuleType) -> None:
    expected = demo.bytes_by_formula(START)
    with pytest.raises(SystemExit) as caught:
        demo.compare_bytes(START, [step(3.0, expected), step(2.0, expected + 1)])
    assert caught.value.code == "demo: the bytes that were sent are not those of the formula"
    demo.compare_bytes(START, [step(3.0, expected)])
