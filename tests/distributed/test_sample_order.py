"""Shuffled epochs: each sample once, another order in each epoch and for each seed, resumable."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from primepar.distributed.text.sample_order import DataPosition, shuffled


def order(count: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return [int(place) for place in shuffled(np.arange(count), count, seed, epoch)]


def test_an_epoch_has_each_sample_once() -> None:
    for count in (*range(1, 40), 255, 256, 257, 1000, 4097):
        for seed, epoch in ((0, 0), (0, 1), (3, 0)):
            assert sorted(order(count, seed, epoch)) == list(range(count))


def test_orders_differ_between_epochs_and_seeds() -> None:
    orders = [order(1000, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({tuple(places) for places in orders}) == 9
    assert order(1000) == order(1000)


def test_any_part_of_an_epoch_is_computed_alone() -> None:
    whole = order(5000, 7, 2)
    assert shuffled(np.array([4999, 17, 3]), 5000, 7, 2).tolist() == [
        whole[4999], whole[17], whole[3]
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2**20 + 1, 10**9, 10**15])
def test_samples_of_a_large_text_differ_and_are_in_it(count: int) -> None:
    samples = shuffled(np.linspace(0, count - 1, 20_000).astype(np.int64), count, 3, 1)
    assert len(set(samples.tolist())) == 20_000
    assert 0 <= samples.min() < count / 1000
    assert 0.999 * count < samples.max() < count


def test_places_of_a_sample_are_spread_over_the_epochs() -> None:
    """Over 1000 epochs of 8 samples, each is at each place 125 times, up to noise.

    For a fair shuffle the statistic has 49 degrees of freedom: 85.4 is its quantile of 0.999. The
    seeds are fixed, so this is no matter of luck.
    """
    counts = np.zeros((8, 8))
    for epoch in range(1000):
        counts[np.arange(8), order(8, 1, epoch)] += 1
    assert ((counts - 125) ** 2 / 125).sum() < 85.4


def test_neighbours_are_torn_apart() -> None:
    """The correlation of places that follow one another is 0, up to 4 standard errors."""
    places = np.array(order(10_000), float)
    correlation = np.corrcoef(places[:-1], places[1:])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(places))


def test_batches_run_on_into_the_next_epoch() -> None:
    position, read = DataPosition(5, "text"), []
    for _ in range(5):
        read += position.next_samples(4, 10).tolist()
        position = position.after(4, 10)
    assert read == order(10, 5, 0) + order(10, 5, 1)
    assert position == DataPosition(5, "text", 2, 0)


def test_a_batch_may_be_longer_than_an_epoch() -> None:
    taken = DataPosition(5, "text", 0, 2).next_samples(7, 3).tolist()
    assert taken == order(3, 5, 0)[2:] + order(3, 5, 1) + order(3, 5, 2)


def test_a_position_goes_through_json_and_back() -> None:
    position = DataPosition(5, "text").after(17, 10)
    assert position == DataPosition(5, "text", 1, 7)
    assert position.samples(10) == 17
    assert msgspec.json.decode(msgspec.json.encode(position), type=DataPosition) == position
