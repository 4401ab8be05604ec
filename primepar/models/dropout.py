"""Which elements dropout keeps: a function of the seed, the step, the operator and the element.

Every device asks for the elements that it holds, so a partitioned model drops what one device does.
The arithmetic is on 64-bit integers that stay below 2^63: NumPy and torch give the same bits.

Dropped are the outputs of `embedding` (with the position added), `blocks.i.proj` and `blocks.i.fc2`
(with their bias), and the probabilities of `blocks.i.attention`.

Every element has a global index. In row i and column j of an activation of K columns it is i K + j,
where rows are the tokens of the step. For the attention's probability in sequence b, head a (of A),
from query t to key s (of T positions) it is ((b A + a) T + t) T + s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Draw:
    """The masks of one training step; replicas that step by themselves draw their own."""

    seed: int
    step: int
    replica: int = 0

    def kept(self, probability: float, operator: str, elements: Any) -> Any:
        """Whether dropout with that probability keeps each element of an operator's output.

        `elements` holds global indices: an integer, or an array of 64-bit integers of NumPy or of
        torch; the answer has its shape. What is kept is to be divided by 1 - probability.
        """
        first, second = (self._key(operator, start) for start in (0, 1))
        bits = _mixed(_mixed((elements & WORD) ^ first) ^ (elements >> 32) ^ second)
        return bits >= round(probability * 2**32)

    def _key(self, operator: str, start: int) -> int:
        key: int = _mixed(start)
        words = (self.seed & WORD, self.seed >> 32 & WORD, self.step, crc32(operator.encode()))
        for word in (*words, self.replica) if self.replica else words:
            key = _mixed(key ^ word & WORD)
        return key


def _mixed(word: Any) -> Any:
    """One word of 32 bits to another, one to one (lowbias32 of Wellons' hash prospector).

    The second factor is 0x846ca68b less 2^32, so that no product leaves 63 bits and a sign.
    """
    word = word ^ word >> 16
    word = word * 0x7FEB352D & WORD
    word = word ^ word >> 15
    word = word * (0x846CA68B - 2**32) & WORD
    return word ^ word >> 16
