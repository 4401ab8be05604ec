"""The likeliest mistake in a map that is refuted, in the words of whoever wrote it.

A counterexample is a place where a map is wrong, and the mistake may be in another line: a forward
map that starts one slice too far is met where gradient ends. So what is often done wrong is looked
for in the maps themselves, the surest first. What is found here is printed before the refutation,
and decides nothing.

    >>> from primepar import Primitive
    >>> class Mine(Primitive):
    ...     axes = ("r",)
    ...     def forward(self, r, t, s): return dict(M=r, N=r + t)
    >>> likely_cause(Mine())
    'Mine.forward: N=r + t reaches 2 on side 2, at r=1, t=1: write N=(r + t) % s'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement, product
from math import gcd, prod

from primepar.errors import PrimeParError
from primepar.schedule.evidence import Miscomputed
from primepar.schedule.expression import Expression, Number, evaluate, names
from primepar.schedule.movement import Movement
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.primitive import Primitive, Slices, Value
from primepar.schedule.sequence import Sequence
from primepar.schedule.tracing import label_of, maps_of, signature
from primepar.verify.primitive.smallest_mesh import FAULTS, coverage_faults, smallest_faults

SIDE = 3
"""Length of every side on which slices are counted: on 2, too many of them look alike."""
WALK = 12
"""Length of the side on which strides are read: of those up to 6 only 5 visits every slice."""


def likely_cause(primitive: Primitive, side: int = 2) -> str | None:
    """The first mistake that is found, with its line and the fix; None if none is.

    `side` is the length of every side for which the sentence gives numbers.
    """
    asked = _Maps(primitive, side)
    try:
        return next((text for cause in _CAUSES for text in cause(asked)), None)
    except (PrimeParError, ZeroDivisionError):
        return None  # a map without a value somewhere has a message of its own


def cause_at(target: object, side: object) -> str | None:
    """The likely cause of a refuted target at the side that was asked; None if it is no primitive.

    Where that side is no number, or less than 2, the sentence is about 2.
    """
    if not isinstance(target, Primitive):
        return None
    return likely_cause(target, max(2, int(str(side)) if str(side).isdecimal() else 2))


@dataclass(frozen=True)
class _Maps:
    """A primitive whose maps are read, and the side to speak of."""

    primitive: Primitive
    side: int

    @cached_property
    def own(self) -> list[Phase]:
        """The phases that have a map of their own."""
        kind = type(self.primitive)
        return [phase for phase in PHASES if getattr(kind, phase) is not getattr(Primitive, phase)]

    @cached_property
    def digits(self) -> dict[Phase, dict[str, Number]]:
        """Phase -> dim -> its index, where that is one digit and depends on a place."""
        phases = maps_of(self.primitive).phases
        return {phase: {dim: index[0] for dim, index in phases[phase].items()
                        if len(index) == 1 and isinstance(index[0], Expression)}
                for phase in PHASES}  # fmt: skip

    def steps(self, side: int) -> int:
        """Steps of a phase where every side has this length."""
        along = dict.fromkeys(self.primitive.side_names, side)
        return int(evaluate(maps_of(self.primitive).steps, along))

    def values(self, index: Number, side: int) -> Iterator[tuple[int, dict[str, int]]]:
        """The index at each device and step of a mesh, and the place."""
        axes, sides = self.primitive.axis_sides, dict.fromkeys(self.primitive.side_names, side)
        for *device, t in product(*(range(side) for _ in axes), range(self.steps(side))):
            place = {**dict(zip(axes, device, strict=True)), "t": t}
            yield int(evaluate(index, {**place, **sides})), place

    def count(self, index: Number) -> int:
        """How many slices an index has on a mesh with sides of length `SIDE`."""
        return 1 + max(value for value, _ in self.values(index, SIDE))

    @cached_property
    def meshes(self) -> list[Sequence]:
        """The primitive on the small meshes on which mistakes are looked for."""
        names = self.primitive.side_names
        # 3 as well as 2: on two devices one step to the left is one to the right.
        return [Sequence.of(self.primitive, *(side for _ in names)) for side in (2, SIDE)]

    @cached_property
    def miscomputed(self) -> dict[str, Miscomputed]:
        """Phase -> the first sub-operator that is not computed once, on the smallest such mesh."""
        wrong: dict[str, Miscomputed] = {}
        for mesh in self.meshes:
            for fault in coverage_faults(Movement(mesh)):
                if isinstance(fault, Miscomputed):
                    wrong.setdefault(fault.phase, fault)
        return wrong

    @cached_property
    def is_met_early(self) -> bool:
        """Whether small meshes show the mistake: one that begins later is none of one edit."""
        return any(smallest_faults(self.meshes, FAULTS))

    def is_right_with(self, phase: Phase, one: str, other: str, offset: int) -> bool:
        """Whether nothing is wrong on small meshes with two dims of a phase exchanged, and moved.

        A dim that is exchanged with itself stays.
        """
        kind = type(self.primitive)
        before: Callable[..., Slices] = getattr(kind, phase)

        def edited(self: Primitive, *args: Value) -> Slices:
            slices, length = before(self, *args), args[-1]
            # There is one side, and a map takes its sides last.
            moved = {one: slices[other], other: slices[one]}
            return {**slices, **{dim: (moved[dim] + offset) % length for dim in moved}}

        if len(self.primitive.side_names) > 1:
            return False  # by which side an index is wrapped is not known
        mine = type(kind.__name__, (kind,), {phase: edited})()
        meshes = (Sequence.of(mine, length) for length in (2, SIDE))
        return not any(smallest_faults(meshes, FAULTS))

    def at(self, method: str) -> str:
        """How a message names a method: `mine.py:7: Mine.forward`."""
        return label_of(self.primitive, method)


def _unwrapped(asked: _Maps) -> Iterator[str]:
    """An index whose slices are as many as no product of sides or steps: `% s` was forgotten.

    A sum such as `r + t` has 2s - 1 values.
    """
    axes, steps = len(asked.primitive.axis_sides), asked.steps(SIDE)
    counts = {prod(factors) for length in range(axes + 2)
              for factors in combinations_with_replacement((1, SIDE, steps), length)}  # fmt: skip
    for phase, dims in asked.digits.items():
        for dim, index in dims.items():
            # On side 3 with 3 steps, 1, 3 and 9 are products of sides and steps; 5, of r + t, is
            # none.
            if asked.count(index) <= SIDE or asked.count(index) in counts:
                continue
            largest, place = max(asked.values(index, asked.side), key=lambda known: known[0])
            instead = f"wrap it with % of the side that {dim} is split by"
            if asked.primitive.side_names == ("s",):
                instead = f"write {dim}=({index}) % s"
            yield (
                f"{asked.at(phase)}: {dim}={index} reaches {largest} on side {asked.side}, at "
                f"{', '.join(f'{name}={value}' for name, value in place.items())}: {instead}"
            )


def _other_slices(asked: _Maps) -> Iterator[str]:
    """A phase that leaves out a dim, or cuts it in another number of slices than the others."""
    for phase in asked.own:
        if phase not in asked.miscomputed:
            continue
        others = {other: asked.digits[other] for other in PHASES if other != phase}
        for dim in "BMNK":
            have = [other for other, dims in others.items() if dim in dims]
            if have and not maps_of(asked.primitive).phases[phase].get(dim):
                splits = "splits" if len(have) == 1 else "split"
                yield (
                    f"{asked.at(phase)}: {phase} leaves out {dim}, which {' and '.join(have)} "
                    f"{splits}: write {dim}=..."
                )
            elif have and (index := asked.digits[phase].get(dim)) is not None:
                count, more = asked.count(index), asked.count(others[have[0]][dim])
                # Two slices in forward and three in backward: the one with fewer forgets some.
                if count < more:
                    yield (
                        f"{asked.at(phase)}: {dim}={index} has {count} slices on side {SIDE}, and "
                        f"{more} in {have[0]}: cut {dim} alike in every phase"
                    )


def _unused(asked: _Maps) -> Iterator[str]:
    """A map that does not depend on an axis, or not on the step: products are computed again."""
    steps = asked.steps(asked.side)
    for phase in asked.own:
        if phase not in asked.miscomputed:
            continue
        index = maps_of(asked.primitive).phases[phase]
        used = names(*(digit for digits in index.values() for digit in digits))
        for axis in asked.primitive.axis_sides:
            if axis not in used:
                yield (
                    f"{asked.at(phase)}: {phase} does not use {axis}, so that all devices along "
                    f"{axis} compute the same: split a dim by {axis}"
                )
        if "t" not in used and steps > 1:
            one = "write def steps(self, "
            yield (
                f"{asked.at(phase)}: {phase} does not use t, so that each of the {steps} steps of "
                f"side {asked.side} computes the same: split a dim by t, or {one}"
                f"{', '.join(asked.primitive.side_names)}): return 1"
            )


def _few_steps(asked: _Maps) -> Iterator[str]:
    """Fewer sub-operators than the grid has, though none is computed twice."""
    for phase, fault in asked.miscomputed.items():
        # Such a fault is met only where nothing is computed twice: more steps would compute the
        # rest.
        if fault.computed is not None:
            yield (
                f"{asked.at('steps')}: {maps_of(asked.primitive).steps} steps are too few, as "
                f"{phase} computes {fault.computed.number} of {fault.computed.total} "
                "sub-operators: take more steps"
            )


def _strides(asked: _Maps) -> Iterator[str]:
    """A device that moves along a dim by more than one slice, and is back too early."""
    for phase in asked.own:
        for dim, index in asked.digits[phase].items() if phase in asked.miscomputed else ():
            # The step runs fastest: these are the steps 0 and 1 of the first device.
            first, second = (value for value, _ in list(asked.values(index, WALK))[:2])
            # Either way round: (r - 2 * t) % 12 moves by 2, and not by 10.
            stride = min((second - first) % WALK, (first - second) % WALK)
            if 1 < stride < WALK // 2 and gcd(stride, WALK) > 1:
                yield (
                    f"{asked.at(phase)}: {dim}={index} moves by {stride} slices at each step, and "
                    f"is back too early where {stride} divides the side: move by 1"
                )


def _left_out(asked: _Maps) -> Iterator[str]:
    """One of backward and gradient, which then has the map of forward."""
    missing = [phase for phase in PHASES if phase not in asked.own]
    if len(missing) == 1 and not asked.miscomputed and asked.is_met_early:
        kind = type(asked.primitive).__name__
        yield (
            f"{asked.at('forward')}: {kind} has no {missing[0]}, so that forward's map is used: "
            f"write def {signature(asked.primitive, missing[0])}"
        )


def _one_edit(asked: _Maps) -> Iterator[str]:
    """All single edits after which nothing is wrong: one slice more or less, two dims exchanged."""
    right = []
    for phase in asked.own if not asked.miscomputed and asked.is_met_early else ():
        dims = asked.digits[phase]
        for dim, (offset, how) in product(dims, ((-1, "far: take 1 off"), (1, "short: add 1"))):
            if asked.is_right_with(phase, dim, dim, offset):
                right.append(f"{asked.at(phase)}: {dim}={dims[dim]} is one slice too {how}")
        for one, other in combinations(dims, 2):
            if asked.is_right_with(phase, one, other, 0):
                right.append(f"{asked.at(phase)}: {one} and {other} are exchanged")
    if right:
        yield ", or ".join(right)


_CAUSES: tuple[Callable[[_Maps], Iterator[str]], ...] = (
    _unwrapped, _other_slices, _unused, _few_steps, _strides, _left_out, _one_edit,
)  # fmt: skip
