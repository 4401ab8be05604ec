"""The registered primitives on their small meshes, and sequences that mix them."""

from __future__ import annotations

from itertools import product

from primepar.partition import PRIMITIVES
from primepar.schedule import Sequence

SIDES: dict[str, list[tuple[int, ...]]] = {
    "summa-rectangular": [
        (q, u, v) for q, u, v in product((1, 2, 3), repeat=3) if q * q * u * v <= 16
    ],
    "tesseract": [*product((1, 2, 3), (1, 2, 4))],
    "summa-deep": [(1, 2), (2, 1), (2, 2), (3, 2)],
    "summa-deep-kept": [(2, 1), (2, 2), (3, 2)],
    "grid-kept": [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 1, 2), (2, 3, 1), (3, 1, 2), (2, 2, 2)],
    "grid-keeps-input": [(2, 2, 1), (2, 1, 2)],
    "grid-keeps-weight": [(2, 2, 1), (1, 2, 2)],
    "grid-regathered": [(2, 2, 1), (2, 1, 3)],
    **{name: [(1, 2), (2, 2), (3, 2), (3, 3)] for name, kind in PRIMITIVES.items() if kind.virtual},
}
"""Sides of a primitive that is not tried at 1 to 4."""

FAMILY = [
    (name, sides)
    for name in PRIMITIVES
    for sides in SIDES.get(name, [(side,) for side in range(1, 5)])
]
"""Every registered name with every choice of its sides."""

MIXED = (
    "M2,S2x2", "S2x2,M2", "K2,Os2x2", "S2x2,K2", "M2,Ks2", "M2,Ns2", "Ks2,P2x2", "P2x2,Ns2",
    "S2x2,P2x2", "P2x2,S2x2", "Ks2,Ns2", "Ks2,Os2x2", "Os2x2,Ks2", "Is2x2,N2", "Ws2x2,B2",
    "Os2x2,Is2x2", "M2,C2x2x2", "Cr2x2x2,N2", "M2,T2x2x1", "K3,S2x2", "D2x2x2,Ks2", "M2,S2x3",
    "S1x2,Ns2", "S2x1,P2x2", "G2x1x2,Ks2",
)  # fmt: skip
"""Sequences with homes in them."""


def member(name: str, sides: tuple[int, ...]) -> Sequence:
    """The sequence of one registered primitive."""
    return Sequence.of(PRIMITIVES[name](), *sides)
