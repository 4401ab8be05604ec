"""The measurement and the pictures of local SGD: against the recursion, and as on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import local_sgd
from benchmarks.bench import text

ROOT = Path(__file__).resolve().parents[2]
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


def test_the_page_has_what_the_command_prints() -> None:
    """One noise with two periods again, and the recursion of all rows."""
    head, columns, *rows, _ = text([local_sgd.measure(0, period) for period in (1, 2)]).splitlines()
    assert head in PAGE
    assert all(" ".join(line.split()) in " ".join(PAGE.split()) for line in (columns, *rows))
    for beta in local_sgd.BETAS:
        for period in local_sgd.PERIODS:
            assert f"  {local_sgd.expected_error(beta, period):.4f}" in PAGE


def test_the_pictures_of_the_page_are_those_of_the_code() -> None:
    kept = (ROOT / "docs" / "images" / "local-sgd-periods.svg").read_text()
    assert local_sgd.schedule_picture() == kept
