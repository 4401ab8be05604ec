"""Primitives in which each axis cuts one dim: on any number of axes, in one step or in several.

In a phase a device works on a box of M, N and K. Which dim each axis cuts is a word, a *cut*: `MK`
is SUMMA's and Megatron's with sequence parallelism, `MNK` the cube of 3D. A home cuts a tensor in
the same way, `MN`. Each axis has a digit of its own in each dim, and a map leaves open those that
it does not cut, so all triples of cuts are maps.

What a device needs and lacks is a box less what it has in common with another box. Along an
axis of side s both have all, or 1 / s where both cut one dim, or 1 / s^2 of it where they cut two.
So `words` is exact, in parts of a tensor of which each device has one at home:

    an axis that cuts neither dim of a tensor       gathered: s
    one that cuts it in the phase as at home        1
    one that cuts another dim than at home          exchanged: 1 / s less of what it has

Example: `MNK` on p x q x d devices sends `3 (d - 1) MN + 3 (p - 1) NK + 2 (q - 1) MK`, as dO is
gathered once for backward and gradient.

**The search.** Cuts are tried in each phase and at home: 216^k triples on k axes, 10 million for
three. The home of one tensor changes nothing for another, so that the best is chosen for each: 27^k
are left. Kept are those that send least for some shape, of all mixes of shapes on a grid.

**Steps.** Let t be one digit more: a map in s steps is a plane of k + 1 digits with a direction
`tau`, and `n . tau` is 1 or -1. So some entry of `tau` is odd. From {-1, 0, 1, 2} that is 1 or -1:
on every side the two tensors with that digit's dim meet s different blocks, and the third at least
one. A cut of that digit has as many, and its home is a part of them. So in one phase no map in
steps sends less than a cut, on any side, and it sends as much only if its direction has digits of
one dim (`planes`). With other entries that holds on sides that are powers of a prime: on side 6 a
direction of 3 in M and 2 in N meets 6, 3 and 2 blocks, as a box cut by axes of 2 and 3.

Three phases that differ are another matter: homes that suit all of them may need a skewed plane.
With layers of Cannon's plane `rings` has such phases. So the classes on three axes are complete for
one cut in all phases, and for phases that differ among triples of cuts and these rings.

Steps also decide memory and messages. They work off what homes have cut: I `[r, c]` and W `[r, c]`
make N = t. In *panels* the digit is t, in a *ring* t and the axes that share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.operators import PHASES, PRODUCTS
from primepar.schedule.primitive import ANY, Primitive, Slices, Value
from primepar.search.covering import COEFFICIENTS, Array
from primepar.search.measures import SIZES

AXES = ("i", "j", "e")
SIDES = ("p", "q", "d")
WHOLE = "-"
"""In a home, of an axis along which a tensor is replicated."""
COMPARED = 8
"""Side of the mesh on which words are compared."""
KEPT = ((), ("I",), ("W",), ("I", "W"))


class Cuts(NamedTuple):
    """A training step: the cut of each phase and of each home."""

    phases: tuple[str, str, str]
    homes: tuple[str, ...] = ()
    """Of I, W and O; empty where tensors stay where a phase leaves them."""
    keeps: tuple[str, ...] = ()
    along: str = ""
    """The dim that is worked off in steps; empty for one step."""
    ring: bool = False
    """Whether what moves goes round, where it would be broadcast in panels."""

    @property
    def shared(self) -> tuple[int, ...]:
        """Axes whose digit of `along` at home is that of the steps."""
        cut = self.phases[0]
        return tuple(
            axis
            for axis in range(len(cut))
            if self.along and any(
                home[axis] == self.along and cut[axis] not in dims
                for home, dims in zip(self.homes, SIZES.values(), strict=True)
            )
        )  # fmt: skip

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the sides of the axes: `q` for those that share a digit."""
        count, shared = len(self.phases[0]), self.shared
        if count == 1:
            return ("s",)
        rest = iter(side for side in SIDES[::-1] if side != "q")
        return tuple("q" if axis in shared else next(rest) for axis in range(count)) if (
            shared
        ) else SIDES[:count]  # fmt: skip

    @property
    def name(self) -> str:
        """`CutMNK`, `CutMK_NK_NK` with several cuts, `CutMKN_PanelsN_KeepIW`."""
        cuts = self.phases[:1] if len(set(self.phases)) == 1 else self.phases
        parts = [f"{'Cut' if self.homes else 'Aligned'}{'_'.join(cuts)}"]
        if self.along:
            parts.append(f"{'Ring' if self.ring else 'Panels'}{self.along}")
        if WHOLE in "".join(self.homes):
            copies = (t for t, home in zip(SIZES, self.homes, strict=True) if WHOLE in home)
            parts.append(f"Copy{''.join(copies)}")
        if self.keeps:
            parts.append(f"Keep{''.join(self.keeps)}")
        return "_".join(parts)


class CutPrimitive(Primitive):
    """The primitive of cuts."""

    def __init__(self, cuts: Cuts) -> None:
        self.cuts, self.label, self.keeps = cuts, cuts.name, cuts.keeps
        self.axes = dict(zip(AXES, cuts.sides, strict=False))
        self.home = self._home if cuts.homes else None

    def steps(self, *sides: Value) -> Value:
        """The side of the axes that share a digit, or one."""
        names = list(dict.fromkeys(self.cuts.sides))
        return sides[names.index(self.cuts.sides[self.cuts.shared[0]])] if self.cuts.along else 1

    def forward(self, *places: Value) -> Slices:
        """The first cut."""
        return self._slices(0, places)

    def backward(self, *places: Value) -> Slices:
        """The second cut."""
        return self._slices(1, places)

    def gradient(self, *places: Value) -> Slices:
        """The third cut."""
        return self._slices(2, places)

    def _slices(self, phase: int, places: tuple[Value, ...]) -> Slices:
        cuts, count = self.cuts, len(self.cuts.sides)
        step: Value = ANY
        if cuts.along:
            step = places[count]
            if cuts.ring:
                sides = dict(zip(dict.fromkeys(cuts.sides), places[count + 1 :], strict=True))
                for axis in cuts.shared:
                    step = places[axis] + step
                step = step % sides[cuts.sides[cuts.shared[0]]]
        return self._digits(cuts.phases[phase], places, step)

    def _home(self, tensor: str, *places: Value) -> Slices:
        cuts = self.cuts
        home = cuts.homes[list(SIZES).index(tensor)]
        of_step = (places[axis] for axis in cuts.shared if home[axis] == cuts.along)
        return self._digits(home, places, next(of_step, ANY), SIZES[tensor])

    def _digits(
        self, cut: str, places: tuple[Value, ...], step: Value, dims: str = "MNK"
    ) -> Slices:
        """Dim -> a digit for each axis that cuts it anywhere, and the one of the steps."""
        cuts, slices = self.cuts, {}
        for dim in dims:
            shared = cuts.shared if dim == cuts.along else ()
            digits = [
                places[axis] if cut[axis] == dim else ANY
                for axis in range(len(cut))
                if axis not in shared
                and any(dim in every[axis] for every in (*cuts.phases, *cuts.homes))
            ]
            digits += [step] * (dim == cuts.along)
            while digits and digits[-1] is ANY:
                digits.pop()
            if digits:
                slices[dim] = digits[0] if len(digits) == 1 else tuple(digits)
        return slices


class SentTerm(NamedTuple):
    """What leaves a device: `times (up - less)` parts of a tensor, of which it has one at home."""

    times: int
    up: tuple[str, ...]
    """Sides whose product is what a device needs."""
    less: tuple[str, ...] = ()
    """Sides of replicas: it has as many times more."""
    parted: tuple[str, ...] = ()
    """Sides along which it needs only a part of what it has."""

    def text(self) -> str:
        """`2 (q d - 1)`."""
        has = " ".join(self.less) or "1"
        has += f" / {' / '.join(self.parted)}" if self.parted else ""
        return f"{f'{self.times} ' * (self.times > 1)}({' '.join(self.up) or '1'} - {has})"


Sent = dict[str, list[SentTerm]]
"""Tensor -> what leaves a device in a training step."""


def phase_before(tensor: str, phase: str, keeps: tuple[str, ...]) -> int | None:
    """Where blocks are from that a phase need not receive again: dO of backward, or kept ones."""
    if (tensor, phase) == ("O", "gradient"):
        return 1
    reads_kept = tensor in keeps and (tensor, phase) in (("I", "gradient"), ("W", "backward"))
    return 0 if reads_kept else None


def terms(cuts: Cuts) -> Sent:
    """What leaves a device in a training step."""
    sides, sent = cuts.sides, {}
    for place, (tensor, dims) in enumerate(SIZES.items()):
        every: Counter[SentTerm] = Counter()
        for phase, cut in zip(PHASES, cuts.phases, strict=True):
            makes = PRODUCTS[phase].writes.removeprefix("d") == tensor
            home = cuts.homes[place] if cuts.homes else None
            needs = tuple(side for side, dim in zip(sides, cut, strict=True) if dim not in dims)
            if home is None:
                every[SentTerm(1, needs)] += 2 * (makes and bool(needs))
                continue
            copies = tuple(s for s, h in zip(sides, home, strict=True) if h == WHOLE)
            parted = tuple(
                side for side, dim, h in zip(sides, cut, home, strict=True)
                if dim in dims and h not in (dim, WHOLE)
            )  # fmt: skip
            before = phase_before(tensor, phase, cuts.keeps)
            if before is not None and cut_on(cuts.phases[before], dims) == cut_on(cut, dims):
                continue
            every[SentTerm(1, needs, copies, parted)] += needs != copies or bool(parted)
            every[SentTerm(1, copies)] += 2 * (makes and bool(copies))
        sent[tensor] = [term._replace(times=n) for term, n in every.items() if n]
    return sent


def amounts(sent: Sent, side: int) -> list[Fraction]:
    """The parts of I, W and O that leave a device where all axes have one side."""
    return [
        sum(
            (
                term.times
                * (side ** len(term.up) - Fraction(side) ** (len(term.less) - len(term.parted)))
                for term in every
            ),
            Fraction(0),
        )
        for every in sent.values()
    ]


def formula_text(sent: Sent, sides: tuple[str, ...]) -> str:
    """What leaves a device: `3 (d - 1) MN + 3 (p - 1) NK + 2 (q - 1) MK, over p q d`."""
    parts = (f"{term.text()} {SIZES[tensor]}" for tensor, every in sent.items() for term in every)
    return f"{' + '.join(parts) or '0'}, over {' '.join(sides)}"


def cut_on(cut: str, dims: str) -> str:
    """What a cut of a phase is for a tensor of these dims: `MNK` is `MN-` for I."""
    return "".join(dim if dim in dims else WHOLE for dim in cut)


# The search


def words(home: str, cut: str, dims: str, side: int) -> float:
    """Parts of a tensor that a device needs in a phase and lacks: the formula above."""
    needs = has = 1.0
    for at_home, dim in zip(home, cut, strict=True):
        if dim in dims:
            needs /= side
            has /= side if at_home == dim else side**2
        else:
            has /= side
    return float((needs - has) * side ** len(cut))


@cache
def shapes() -> NDArray[np.float64]:
    """Ratios of MN, NK and MK, a column each: powers of two in twelfths, from 2^-8 to 2^8."""
    powers = 2.0 ** (np.arange(-96, 97) / 12)
    return np.array([(a, b, 1.0) for a in powers for b in powers]).T


@cache
def fewest(axes: int, keeps: tuple[str, ...]) -> tuple[Cuts, ...]:
    """The triples with homes of one copy that send least for some shape."""
    cuts = _names("MNK", axes)
    total = np.zeros((3, *[len(cuts)] * 3))
    homes = []
    for number, (tensor, dims) in enumerate(SIZES.items()):
        on = np.array([cut_on(cut, dims) for cut in cuts])
        same = on[:, None] == on[None, :]
        every = []
        for home in _names(dims, axes):
            sent = np.array([words(home, cut, dims, COMPARED) for cut in cuts])
            forward, backward, gradient = sent[:, None, None], sent[:, None], sent
            once = {
                "O": same * gradient * (tensor == "O"),
                "I": same[:, None] * gradient * ("I" in keeps),
                "W": same[:, :, None] * backward * ("W" in keeps),
            }[tensor]
            every.append(forward + backward + gradient - once)
        table = np.stack(every)
        homes.append(table.argmin(0))
        total[number] = table.min(0)
    vectors, first = np.unique(total.reshape(3, -1).T.round(9), axis=0, return_index=True)
    # What sends no less of any tensor than another, and more of one, is least for no shape.
    least = [i for i, one in enumerate(vectors) if (vectors <= one).all(1).sum() == 1]
    best = []
    for vector in np.array(least)[np.unique((vectors[least] @ shapes()).argmin(0))]:
        f, b, g = np.unravel_index(first[vector], total.shape[1:])
        at_home = tuple(
            _names(dims, axes)[chosen[f, b, g]]
            for chosen, dims in zip(homes, SIZES.values(), strict=True)
        )
        best.append(Cuts((cuts[f], cuts[b], cuts[g]), at_home, keeps))
    return tuple(best)


def _names(dims: str, axes: int) -> list[str]:
    return ["".join(name) for name in product(dims, repeat=axes)]


def in_steps(axes: int) -> Iterator[Cuts]:
    """Yield what works off one cut in steps along a dim, in panels and in rings, kept or not.

    All that moves along that dim goes in steps, on as many axes as there are up to two. With three
    axes the last one, the depth, may have replicas of the tensor that it does not cut.
    """
    for cut, along, ring in product(_sorted(axes), "MNK", (False, True)):
        for keeps in dict.fromkeys(((), _gathered(cut))):
            yield from _stepped(Cuts((cut,) * 3, (), keeps, along, ring))
    if axes > 2:
        for cut, depth, along, ring in product(_sorted(axes - 1), "MNK", "MNK", (False, True)):
            yield from _stepped(Cuts((cut + depth,) * 3, (), (), along, ring), copies=True)


def _stepped(cuts: Cuts, *, copies: bool = False) -> Iterator[Cuts]:
    """The cuts with their homes, if they can be worked off in steps, and if replicas save words."""
    cut = cuts.phases[0]
    once, *more = (
        cuts._replace(homes=tuple(_home(cut, dims, cuts.along, copy) for dims in SIZES.values()))
        for copy in (False, True)[: 1 + copies]
    )
    best = more[0] if copies else once
    if len(best.shared) == min(len(cut), 2) and (not copies or terms(once) != terms(best)):
        yield best


def _sorted(axes: int) -> list[str]:
    """The cuts that differ by more than names of axes."""
    return ["".join(cut) for cut in combinations_with_replacement("MNK", axes)]


def _gathered(cut: str) -> tuple[str, ...]:
    """Operands that forward gathers and that a later phase reads."""
    return tuple(tensor for tensor, dim in (("I", "K"), ("W", "M")) if dim in cut)


def _home(cut: str, dims: str, along: str, copies: bool) -> str:
    """Where a cut has a tensor at home: what it gathers, in panels of `along` if it has that."""
    home, panels = "", along
    for axis, dim in enumerate(cut):
        if dim in dims:
            home += dim
        elif copies and axis == len(cut) - 1:
            home += WHOLE
        elif panels in dims and panels:
            home, panels = home + panels, ""
        else:
            home += dims.replace(along, "")[0]
    return home


def in_one_step(axes: int) -> Iterator[Cuts]:
    """Yield what is kept of the search, with whichever copies kept save words."""
    for keeps in KEPT:
        for cuts in fewest(axes, keeps):
            fewer = (tuple(other for other in keeps if other != tensor) for tensor in keeps)
            if all(terms(cuts._replace(keeps=less)) != terms(cuts) for less in fewer):
                yield cuts


def aligned(axes: int) -> list[Cuts]:
    """The triples of cuts without homes that align, up to names of axes: nests of one axis.

    O ends forward where dO starts backward, so both have one cut; dW ends where W starts forward.
    """
    return [Cuts((cut,) * 3) for cut in _sorted(axes)]


def planes(axes: int) -> tuple[int, int, int, int]:
    """Maps in steps: tried, covering, distinct, and of these as good as a cut.

    A map is a plane of the digits and t, its normal `n` and direction `tau` from {-1, 0, 1, 2}, for
    each way to give dims to the digits. It covers if `n . tau` is 1 or -1. Distinct are those that
    differ by more than signs and the order of the digits of a dim. As good is a direction in one.
    """
    count = axes + 1
    every: Array = np.array(list(product(COEFFICIENTS, repeat=count)))
    normal, direction = (part.reshape(-1, count) for part in np.broadcast_arrays(
        every[:, None], every[None]))  # fmt: skip
    unit = (normal * direction).sum(1)
    covering = abs(unit) == 1
    normal, direction = normal[covering] * unit[covering, None], direction[covering]
    code = np.maximum(normal * 10 + direction, -normal * 10 - direction)
    layouts = list(combinations_with_replacement(range(3), count))
    distinct = good = 0
    for layout in layouts:
        parts = [np.sort(code[:, [d == dim for d in layout]], axis=1) for dim in range(3)]
        _, first = np.unique(np.concatenate(parts, axis=1), axis=0, return_index=True)
        distinct += len(first)
        moved = direction[first] != 0
        of_dim = [moved[:, [d == dim for d in layout]].any(1) for dim in range(3)]
        good += int((sum(part.astype(int) for part in of_dim) == 1).sum())
    return len(layouts) * len(unit), len(layouts) * int(covering.sum()), distinct, good
