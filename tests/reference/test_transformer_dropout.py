"""Dropout: one mask, a function of its counter, in NumPy as in torch."""

from __future__ import annotations

import numpy as np
import pytest

from primepar.models.dropout import Draw

ELEMENTS = np.arange(100_000, dtype=np.int64)


def test_the_kept_elements_of_a_draw_are_these() -> None:
    kept = Draw(seed=1, step=2).kept(0.5, "blocks.0.proj", ELEMENTS[:16])
    assert "".join("01"[int(bit)] for bit in kept) == "0001110010000111"


def test_the_share_that_is_dropped_is_the_probability() -> None:
    for probability in (0.1, 0.5, 0.9):
        kept = Draw(0, 0).kept(probability, "embedding", ELEMENTS)
        assert kept.mean() == pytest.approx(1 - probability, abs=0.01)


def test_nothing_is_dropped_with_probability_zero() -> None:
    assert Draw(0, 0).kept(0.0, "embedding", ELEMENTS).all()


@pytest.mark.parametrize(
    ("other", "operator"),
    [(Draw(0, 1), "a"), (Draw(1, 0), "a"), (Draw(2**32, 0), "a"), (Draw(0, 0), "b")],
)
def test_another_seed_step_or_operator_drops_independently(other: Draw, operator: str) -> None:
    one, two = Draw(0, 0).kept(0.5, "a", ELEMENTS), other.kept(0.5, operator, ELEMENTS)
    assert (one == two).mean() == pytest.approx(0.5, abs=0.01)


def test_neighbours_and_distant_elements_are_dropped_independently() -> None:
    kept = Draw(0, 0).kept(0.5, "a", ELEMENTS)
    for distance in (1, 2, 64, 4096):
        alike = (kept[distance:] == kept[:-distance]).mean()
        assert alike == pytest.approx(0.5, abs=0.01)
    far = Draw(0, 0).kept(0.5, "a", ELEMENTS + 2**32)
    assert (kept == far).mean() == pytest.approx(0.5, abs=0.01)


def test_a_block_is_dropped_as_on_one_device() -> None:
    rows, columns = ELEMENTS[:40, None], ELEMENTS[:30]
    whole = Draw(3, 4).kept(0.3, "a", rows * 30 + columns)
    block = Draw(3, 4).kept(0.3, "a", rows[10:20] * 30 + columns[15:])
    assert np.array_equal(block, whole[10:20, 15:])


def test_integers_numpy_and_torch_draw_the_same() -> None:
    torch = pytest.importorskip("torch")
    elements = np.concatenate([ELEMENTS[:1000], ELEMENTS[:1000] * 2**40 + 7, [2**63 - 1]])
    draw = Draw(seed=2**40 + 5, step=10**6)
    kept = draw.kept(0.25, "blocks.1.attention", elements)
    in_torch = draw.kept(0.25, "blocks.1.attention", torch.tensor(elements))
    assert np.array_equal(kept, in_torch.numpy())
    assert kept.tolist() == [draw.kept(0.25, "blocks.1.attention", int(e)) for e in elements]
