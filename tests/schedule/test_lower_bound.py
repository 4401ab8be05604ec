"""Lower bounds: never above a minimum, a method or the best schedule of few blocks, and tight."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest
from profiles import draws
from scipy.optimize import minimize

from benchmarks.lower_bounds import grids, kept_words, optimum
from primepar.partition import PRIMITIVES, parse_sequence
from primepar.reference import check
from primepar.schedule import Element, Linear, Movement, Sequence
from primepar.schedule.lower_bound import (
    one_product,
    starts_replicated,
    training_step,
)

SHAPES = [
    tuple(Random(seed).choice((1, 3)) * 2 ** Random(seed + 1).randrange(3, 15) for seed in seeds)
    for seeds in (range(3 * case, 3 * case + 3) for case in range(draws(2000)))
]


def close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * max(abs(one), abs(other))


# Known values


@pytest.mark.parametrize(
    ("shape", "devices", "words"),
    [
        ((4096, 4096, 4096), 1, 0.0),
        ((64, 2, 2), 4, 3 / 4 * 4),  # 3 / 4 of the smallest tensor is gathered
        ((64, 64, 2), 16, 2 * (8 * 8 * 16) ** 0.5 - 8 - 8),  # both smaller ones are
        ((64, 64, 64), 64, 3 * (64**3 / 64) ** (2 / 3) - 3 * 64),
    ],
)
def test_one_product_is_theorem_3(shape: tuple[int, int, int], devices: int, words: float) -> None:
    assert close(one_product(*shape, devices), words)


def test_a_step_of_the_cube_is_more_than_three_products_with_stash_and_less_than_all_stash() -> (
    None
):
    side, devices = 64, 64
    surface = (side**3 / devices) ** (2 / 3)
    held = 2 * 3 * side**2 / devices
    bound = training_step(side, side, side, devices)
    assert close(bound, 4.5 * 2 ** (1 / 3) * surface - held)
    assert bound < 6 * surface - held < 3 * one_product(side, side, side, devices)


def test_the_smallest_tensor_alone_is_gathered_where_it_is_small_enough() -> None:
    assert close(training_step(8192, 512, 2048, 4), 2 * 3 / 4 * 512 * 2048)


def test_little_memory_makes_every_bound_larger_and_much_memory_changes_none() -> None:
    shape, devices = (4096, 4096, 4096), 4096
    copy = 3 * 4096**2 / devices
    free = training_step(*shape, devices)
    least, more = (training_step(*shape, devices, memory=words) for words in (copy, 1.2 * copy))
    assert least > more > free
    assert training_step(*shape, devices, memory=1e12) == free
    kept = [training_step(*shape, devices, kept=words) for words in (0, copy, 2 * copy, 1e12)]
    assert kept[0] > kept[1] > kept[2] >= kept[3] == free
    # One word that is kept saves at most one word that is sent.
    assert close(kept[1] - kept[2], copy)


# Never above


def test_the_bound_is_never_above_the_minimum_that_a_solver_has_and_near_it() -> None:
    random = np.random.default_rng(0)
    for _ in range(150):
        devices = int(random.choice((2, 3, 4, 16, 64, 1024)))
        M, N, K = (int(size) for size in 2 ** random.uniform(4, 14, 3))
        words = np.array([M * N, N * K, M * K] * 2) / devices
        whole = np.log(devices)
        # A, B, C, a, b and c in A B c, A b C and a B C
        rows = np.array([[1, 1, 0, 0, 0, 1], [1, 0, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0]])
        size = words.sum()
        solved = minimize(
            lambda y, words=words, size=size: float(words @ np.exp(y)) / size,
            np.full(6, whole / 3),
            jac=lambda y, words=words, size=size: words * np.exp(y) / size,
            bounds=[(0, whole)] * 6,
            constraints={
                "type": "ineq",
                "fun": lambda y, rows=rows, whole=whole: rows @ y - whole,
                "jac": lambda y, rows=rows: rows,
            },
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )
        minimum = solved.fun * size - 2 * words[:3].sum()
        bound = training_step(M, N, K, devices)
        assert bound <= minimum + 1e-7 * size
        assert bound >= minimum - 1e-6 * size


def at_side(name: str, side: int) -> Sequence:
    primitive = PRIMITIVES[name]()
    return Sequence.of(primitive, *(side for _ in primitive.side_names))


WITH_ONE_COPY = [name for name in PRIMITIVES if not starts_replicated(Movement(at_side(name, 2)))]


def test_layouts_with_copies_at_the_start_have_no_bound() -> None:
    assert set(PRIMITIVES) - set(WITH_ONE_COPY) == {
        "by-batch", "by-sequence", "by-input", "by-output", "tesseract"
    }  # fmt: skip
    lines = [str(check(parse_sequence(text))).splitlines()[-1] for text in ("N2", "M2,K2", "P2x2")]
    assert lines == [
        "  lower bound      none: dO starts replicated",
        "  lower bound      none: I, W start replicated",
        "  lower bound      12 elements, sent is 2.67 times that",
    ]


def test_no_method_is_below_the_bound_on_random_shapes() -> None:
    """The formulas are equal to what the programs send (test_equal_on_meshes.py)."""
    random, least = Random(0), 9.0
    for shape in SHAPES:
        M, N, K = shape
        for name in random.sample(WITH_ONE_COPY, 2):
            primitive = PRIMITIVES[name]()
            sides = tuple(random.choice((1, 2, 3, 4, 8)) for _ in primitive.side_names)
            element = Element(primitive, sides)
            devices = prod(element.axis_lengths)
            sent, held = (way(Linear(M=M, N=N, K=K)) for way in (element.sent, element.held))
            assert sent is not None
            assert held is not None
            bound = training_step(M, N, K, devices, memory=float(held))
            assert bound <= sent, (name, sides, shape)
            least = min(least, float(sent) / bound) if bound else least
    assert 1 <= least < 1.001, "some method meets the bound"


def test_what_keeps_little_is_never_below_the_bound_of_that() -> None:
    near = 9.0
    for name in WITH_ONE_COPY:
        sequence = at_side(name, 2)
        movement, devices = Movement(sequence), sequence.ranks
        for M, N, K in SHAPES[:60]:
            operator = Linear(M=M, N=N, K=K)
            if any(operator.size(dim) % cuts for dim, cuts in sequence.grid.items()):
                continue
            sent = sequence.elements[0].sent(operator)
            assert sent is not None
            kept = kept_words(movement, operator) - M * K / devices
            bound = training_step(M, N, K, devices, kept=kept)
            assert bound <= sent, (name, M, N, K)
            near = min(near, float(sent) / bound)
    for M, N, K in SHAPES[:60]:
        for kept_all in (False, True):
            kept = (M + N + K) ** 2 if kept_all else 0
            assert training_step(M, N, K, 8, kept=kept) <= grids((M, N, K), 8, kept=kept_all)
    assert near < 1.001, "some method meets the bound"


@pytest.mark.parametrize(
    ("cuts", "devices", "shape", "gap"),
    [
        ((2, 2, 2), 2, (4, 4, 4), 1.625),
        ((2, 2, 2), 2, (64, 8, 8), 1.0),
        ((3, 2, 1), 3, (6, 6, 6), 1.520),
    ],
)
def test_the_bound_is_never_above_the_best_of_all_assignments(
    cuts: tuple[int, int, int], devices: int, shape: tuple[int, int, int], gap: float
) -> None:
    best, bound = optimum(cuts, devices, shape), training_step(*shape, devices)
    assert bound <= best
    assert abs(best / bound - gap) < 1e-3
