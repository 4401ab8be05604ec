"""Shuffled epochs: in which order a run reads its samples, and where it is in that order.

An epoch is a permutation of all samples that depends on the seed and the number of the epoch alone.
It is computed sample by sample, so that a text of any size needs no memory for it. The permutation
is a Feistel network over the next power of four; a place that falls outside is moved again until it
is inside ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Places = NDArray[np.int64]
_ROUNDS = 6
_Count = Annotated[int, Meta(ge=0)]


class DataPosition(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run is in its data; a checkpoint stores it, so that a run resumes at this sample."""

    seed: _Count
    text: str
    """Digest of the text."""
    epoch: _Count = 0
    sample: _Count = 0
    """The next sample of this epoch."""

    def after(self, samples: int, count: int) -> DataPosition:
        """Return the position `samples` later, in epochs of `count` samples."""
        epochs, sample = divmod(self.sample + samples, count)
        return DataPosition(self.seed, self.text, self.epoch + epochs, sample)

    def samples(self, count: int) -> int:
        """Return how many samples were read, in epochs of `count` samples."""
        return self.epoch * count + self.sample

    def next_samples(self, samples: int, count: int) -> Places:
        """Return the next `samples` samples out of `count`; they may begin another epoch."""
        taken: list[Places] = []
        position = self
        while samples:
            here = min(samples, count - position.sample)
            places = np.arange(position.sample, position.sample + here)
            taken.append(shuffled(places, count, self.seed, position.epoch))
            position, samples = position.after(here, count), samples - here
        return np.concatenate(taken)


def shuffled(places: Places, count: int, seed: int, epoch: int) -> Places:
    """Return the samples at some places of an epoch; over all `count` places, each sample once."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = (
        np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    )
    samples = _network(places.astype(np.uint64), keys, half)
    while (outside := samples >= count).any():
        samples[outside] = _network(samples[outside], keys, half)
    return samples.astype(np.int64)


def _network(values: NDArray[np.uint64], keys: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    """Permute the numbers below `4 ** half`: each round adds a hash of one half to the other.

    Whatever the hash is, a round can be undone, so that no two numbers meet.
    """
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_hash(right + key) & mask)
    return (left << bits) | right


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
