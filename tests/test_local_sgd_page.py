"""The measurement and the pictures of local SGD: against the recursion, and as on the page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command import run

from benchmarks import local_sgd
from primepar.cli import main
from primepar.partition.local_sgd import LocalSGD
from primepar.pictures.period_picture import GRADIENTS, MODELS, STEP, period_picture
from primepar.schedule.events import Event

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "local-sgd.md").read_text()


def test_with_constant_noise_the_same_random_numbers_give_the_same_mean() -> None:
    means = [local_sgd.averaged_models(0.0, period, runs=50) for period in local_sgd.PERIODS]
    for mean in means[1:]:
        assert np.abs(mean - means[0]).max() < 1e-12


def test_with_more_noise_far_away_frequent_averages_help() -> None:
    for beta in local_sgd.BETAS:
        errors = [local_sgd.expected_error(beta, period) for period in local_sgd.PERIODS]
        assert errors == (sorted(errors) if beta else pytest.approx([errors[0]] * 6, rel=1e-12))
    assert errors[-1] > 1.5 * errors[0]


def test_the_recursion_is_that_of_the_runs() -> None:
    """Three standard errors, on fewer runs than the page has, and of other random numbers."""
    for beta in (0.0, 1.0):
        for period in (1, 4):
            squares = local_sgd.averaged_models(beta, period, runs=4000, seed=(7, period)) ** 2
            off = abs(squares.mean() - local_sgd.expected_error(beta, period))
            assert off < 3 * squares.std() / np.sqrt(4000)


def test_the_page_has_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """One noise and one period again, and the recursion of all rows."""
    monkeypatch.setattr(local_sgd, "BETAS", local_sgd.BETAS[:1])
    monkeypatch.setattr(local_sgd, "PERIODS", local_sgd.PERIODS[:2])
    head, columns, *rows, _ = local_sgd.lines(local_sgd.measure())
    for line in (head, columns, *rows):
        assert line in PAGE
    monkeypatch.undo()
    for beta in local_sgd.BETAS:
        for period in local_sgd.PERIODS:
            assert f"{local_sgd.expected_error(beta, period):16.4f}" in PAGE


def test_the_command_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    def program() -> None:
        main(local_sgd.app, "python -m benchmarks.local_sgd")

    folder = tmp_path / "none"
    done = run("--output", str(folder), program=program, name="benchmarks")
    assert done.code == 2
    assert f"--output: expected a folder that is there, got {folder}: make it first" in done.err


def bars(svg: str, colour: str) -> list[tuple[float, float]]:
    """(x, y) of the boxes of a colour that have a tooltip, so not those of the legend."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    return [
        (float(box.attrib["x"]), float(box.attrib["y"]))
        for box in root.iter(f"{space}rect")
        if box.attrib["fill"] == colour and box.find(f"{space}title") is not None
    ]


def events(method: LocalSGD) -> list[Event]:
    return list(local_sgd.emulated_events(method))


@pytest.mark.parametrize(("period", "warm_up"), [(1, 0), (3, 0), (4, 0), (8, 0), (3, 2)])
def test_the_picture_has_a_box_for_each_step_and_a_bar_for_each_average(
    period: int, warm_up: int
) -> None:
    method = LocalSGD(workers=3, period=period, steps=8, warm_up=warm_up)
    svg = period_picture({"run": events(method)})
    assert len(bars(svg, STEP)) == 3 * 8
    assert len(bars(svg, MODELS)) == 3 * len(method.averages)
    assert len(bars(svg, GRADIENTS)) == 3 * warm_up
    steps = sorted({x for x, _ in bars(svg, STEP)})
    after = [max(n for n, x in enumerate(steps) if x < bar) for bar, _ in bars(svg, MODELS)]
    assert sorted(set(after)) == list(method.averages)


def test_the_pictures_of_the_page_are_those_of_the_code() -> None:
    kept = (ROOT / "docs" / "images" / "local-sgd-periods.svg").read_text()
    assert local_sgd.schedule_picture() == kept
