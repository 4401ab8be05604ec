"""Primitives on layers of Cannon's plane: another tensor may stay in each phase, on three axes.

Devices `i, j, e` of q x q x d: in each layer e they have the plane `M=i, N=i + j, K=j` at home. On
it any tensor may stay in a phase while the two others go round (`homes`), and the layers cut one
dim in each phase and at home (`boxes`). What leaves a device is known for each tensor and phase, in
parts of the tensor of which it has one at home:

                      it stays     it goes round
    layers cut it
      as at home      0            q - 1
      in another dim  1 - 1 / d    q - 1 / d
    they do not       d - 1        q d - 1

Example: `RingsOII_CutN` has O stay in forward and I after it, on layers that cut N. It sends
`(q - 1) MN + 3 (q - 1) NK + (d - 1 + q d - 1) MK`: dO goes round once for backward and gradient.

**The search.** What stays and what the layers cut is tried for each phase, and the layers' cut of
each home: 27 x 27 x 8 triples. Homes are chosen one by one, which leaves 729. Kept are those that
send less for some shape than all of these and all triples of cuts do. If one tensor stays in all
phases none does: the layers' cut and the rotation are a cut, in its phases and at home.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from primepar.schedule.operators import PHASES
from primepar.schedule.primitive import ANY, Primitive, Slices, Value
from primepar.search import boxes
from primepar.search.boxes import (
    AXES,
    COMPARED,
    KEPT,
    Sent,
    SentTerm,
    amounts,
    cut_on,
    phase_before,
    shapes,
)
from primepar.search.measures import SIZES

SIDES = ("q", "q", "d")
MOVES = {"I": "K", "W": "M", "O": "N"}
"""The tensor that stays -> the dim along which the two others go round."""
TRIED = 27 * 27 * 8
"""Of what stays, what the layers cut in each phase, and at home."""


class Rings(NamedTuple):
    """A training step: what stays, and what the layers cut."""

    stays: tuple[str, ...]
    """The tensor that stays in forward, backward and gradient."""
    layers: tuple[str, ...]
    """The dim that the layers cut in each of them."""
    homes: tuple[str, ...]
    """And at home: of I, W and O."""
    keeps: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`RingsOII_CutN`, `RingsWIW_CutN_KeepI`."""
        cuts = self.layers[:1] if len(set(self.layers)) == 1 else self.layers
        kept = f"_Keep{''.join(self.keeps)}" if self.keeps else ""
        return f"Rings{''.join(self.stays)}_Cut{'_'.join(cuts)}{kept}"


class RingsPrimitive(Primitive):
    """The primitive of rings on layers."""

    def __init__(self, rings: Rings) -> None:
        self.rings, self.label, self.keeps = rings, rings.name, rings.keeps
        self.axes = dict(zip(AXES, SIDES, strict=True))

    def forward(self, i: Value, j: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        """The first phase."""
        return self._slices(0, i, j, e, t, q)

    def backward(self, i: Value, j: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        """The second phase."""
        return self._slices(1, i, j, e, t, q)

    def gradient(self, i: Value, j: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        """The third phase."""
        return self._slices(2, i, j, e, t, q)

    def home(self, tensor: str, i: Value, j: Value, e: Value, q: Value, d: Value) -> Slices:
        """Where the plane starts, with the layers' cut of the tensor."""
        plane = {"M": i, "N": (i + j) % q, "K": j}
        cut = self.rings.homes[list(SIZES).index(tensor)]
        return self._cut({dim: plane[dim] for dim in SIZES[tensor]}, cut, e)

    def _slices(self, phase: int, i: Value, j: Value, e: Value, t: Value, q: Value) -> Slices:
        plane, along = {"M": i, "N": i + j, "K": j}, MOVES[self.rings.stays[phase]]
        plane[along] = plane[along] + t
        for dim in {"N", along}:
            plane[dim] = plane[dim] % q
        return self._cut(plane, self.rings.layers[phase], e)

    def _cut(self, plane: dict[str, Value], cut: str, e: Value) -> Slices:
        """A second digit in dims that layers cut: of the layer, or left open in another phase."""
        every = {*self.rings.layers, *self.rings.homes}
        slices: Slices = {}
        for dim, digit in plane.items():
            slices[dim] = (e if dim == cut else ANY, digit) if dim in every else digit
        return slices


def terms(rings: Rings) -> Sent:
    """What leaves a device in a training step."""
    sent = {}
    for (tensor, dims), home in zip(SIZES.items(), rings.homes, strict=True):
        every: Counter[SentTerm] = Counter()
        for phase, stays, cut in zip(PHASES, rings.stays, rings.layers, strict=True):
            before = phase_before(tensor, phase, rings.keeps)
            if (
                before is not None
                and cut_on(rings.layers[before], dims) == cut_on(cut, dims)
                and rings.stays[before] == stays
            ):
                continue
            goes = ("q",) * (stays != tensor)
            if cut not in dims:
                every[SentTerm(1, (*goes, "d"))] += 1
            elif goes or cut != home:
                every[SentTerm(1, goes, (), ("d",) * (cut != home))] += 1
        sent[tensor] = [term._replace(times=n) for term, n in every.items()]
    return sent


@cache
def fewest() -> tuple[Rings, ...]:
    """The rings that send less for some shape than all others and all triples of cuts.

    With whichever copies kept save words.
    """
    kept = []
    for keeps in KEPT:
        cuts = [amounts(boxes.terms(entry), COMPARED) for entry in boxes.fewest(3, keeps)]
        least = (np.array(cuts, dtype=np.float64) @ shapes()).min(0)
        tried: dict[tuple[Fraction, ...], Rings] = {}
        for stays, layers in product(product(MOVES, repeat=3), product("MNK", repeat=3)):
            # The home of one tensor changes nothing for another, so that the better of two is
            # chosen for each: M or N for I, N or K for W, M or K for O.
            both = [
                Rings(stays, layers, homes, keeps) for homes in zip(*SIZES.values(), strict=True)
            ]
            sent = [*zip(*(amounts(terms(rings), COMPARED) for rings in both), strict=True)]
            choices = zip(SIZES.values(), sent, strict=True)
            homes = tuple(dims[second < first] for dims, (first, second) in choices)
            tried.setdefault(tuple(map(min, sent)), Rings(stays, layers, homes, keeps))
        words = np.array(list(tried), dtype=np.float64) @ shapes()
        less = words.min(0) < least * (1 - 1e-9)
        for place in np.unique(words.argmin(0)[less]):
            rings = list(tried.values())[place]
            fewer = (tuple(other for other in keeps if other != tensor) for tensor in keeps)
            if all(terms(rings._replace(keeps=some)) != terms(rings) for some in fewer):
                kept.append(rings)
    return tuple(kept)
