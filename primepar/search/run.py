"""The search from maps to proved classes, and where a primitive is placed among them.

    maps tried       4^9: every coefficient of r, c and t in M, N and K from {-1, 0, 1, 2}
    covering         those that compute each sub-operator once on every mesh
    distinct         those that differ by more than names of devices and the way slices are counted
    aligned          triples without homes whose tensors end where the next phase starts
    proved           classes that are kept, each certified for every side

Kept of triples with homes is a frontier: no other sends less of one tensor and no more of any. It
is taken for each choice of copies that are kept, and where fewer send as little that one goes. Of
those that send the same one is kept for each choice of the tensors that are broadcast, the one with
the smallest coefficients. Of triples without homes the one with the fewest hops is kept for each
choice of the tensor that stays in forward, backward and gradient. What is not kept is counted.

That is for two axes of side s. One axis, and three, are searched by `boxes`, and by `rings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import permutations, product

import numpy as np
from msgspec import Struct

from primepar.certify.certificate_format import PrimitiveCertificate
from primepar.certify.primitive import certify_primitive
from primepar.partition import PRIMITIVES
from primepar.schedule.operators import PHASES
from primepar.schedule.primitive import Primitive
from primepar.search import aligned, boxes, homes, rings
from primepar.search.affine import DIMS, TENSORS, Affine, Map, OtherShapeError, Triple, triple_of
from primepar.search.boxes import Sent
from primepar.search.covering import MAPS, covers, distinct, exchanged
from primepar.search.measures import (
    Words,
    beats,
    formula_text,
    on_side,
    parts_sent,
    words_of,
)
from primepar.search.symmetry import Key, key
from primepar.verify.primitive.proof import prove

SMALL = {1: 3, 2: 3, 3: 2}
"""Axes -> side of the mesh on which classes of one axis and of three are compared."""
NAMED = 5
"""Of classes that send less or the same, in a sentence."""


@dataclass(frozen=True)
class SearchClass:
    """A class: one of its primitives, what it sends, and the certificate of its proof."""

    name: str
    """`AlignedOIW`, or `HomesOOObW`: what stays in each phase, and what is broadcast."""
    primitive: Primitive
    formula: str
    """What leaves each device, times the parts of a tensor."""
    certificate: PrimitiveCertificate | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class PlaneClass(SearchClass):
    """A class on two axes."""

    triple: Triple
    words: Words

    @cached_property
    def key(self) -> Key:
        """What all triples of the class share."""
        return key(self.triple)


@dataclass(frozen=True)
class BoxClass(SearchClass):
    """A class on one axis or on three."""

    sent: Sent

    @cached_property
    def key(self) -> frozenset[bytes]:
        """The work of all devices on a small mesh, under each order of the axes."""
        return work(self.primitive)


class Counted(Struct, frozen=True):
    """How many maps or triples were tried, or left at one stage."""

    name: str
    number: int
    what: str


@dataclass(frozen=True)
class Search:
    """The result: the classes, what is known of them by name, and the counts."""

    classes: tuple[SearchClass, ...]
    counts: tuple[Counted, ...]
    known: dict[str, Placement]
    """Name of a registered primitive with as many axes -> where it is placed."""
    is_complete: bool
    """Whether all that is kept is proved."""


def search(axes: int = 2, tick: Callable[[str], object] = str) -> Search:
    """Search the maps on one axis, on two of side s, or on three, and prove what is kept."""
    kept, classes = candidates(axes), []
    for entry in kept:
        tick(entry.name)
        certificate = prove(entry.primitive).certificate
        if certificate is not None:
            certify_primitive(certificate, entry.primitive)
            classes.append(replace(entry, certificate=certificate))
    counts = (
        *(_plane_counts() if axes == 2 else _box_counts(axes)),
        Counted("proved", len(classes), "for every side, each certified"),
    )
    known = {
        name: placed(kind(), tuple(classes))
        for name, kind in PRIMITIVES.items()
        if len(kind().axis_sides) == axes and not kind.virtual
    }
    return Search(tuple(classes), counts, known, len(classes) == len(kept))


@cache
def candidates(axes: int = 2) -> tuple[SearchClass, ...]:
    """What is kept, before it is proved."""
    return plane_classes() if axes == 2 else box_classes(axes)


@cache
def plane_classes() -> tuple[PlaneClass, ...]:
    """What is kept on two axes of side s, in s steps."""
    return (*_without_homes(), *_with_homes())


@cache
def box_classes(axes: int) -> tuple[BoxClass, ...]:
    """What is kept where each axis cuts one dim, and of three on layers of Cannon's plane."""
    every = (*boxes.aligned(axes), *boxes.in_one_step(axes), *boxes.in_steps(axes))
    mixed = rings.fewest() if axes == 3 else ()
    return (
        *(_box(boxes.CutPrimitive(cuts), boxes.terms(cuts)) for cuts in every),
        *(_box(rings.RingsPrimitive(entry), rings.terms(entry)) for entry in mixed),
    )


def _box(primitive: Primitive, sent: Sent) -> BoxClass:
    sides = tuple(primitive.axis_sides.values())
    return BoxClass(primitive.label, primitive, boxes.formula_text(sent, sides), sent)


def _plane_counts() -> Iterator[Counted]:
    kept, shapes = plane_classes(), distinct()
    exchange = "where M, N and K may be exchanged"
    yield Counted("maps tried", len(MAPS), "coefficients of r, c and t from -1, 0, 1, 2")
    yield Counted("covering", int(covers().sum()), "on every mesh")
    yield Counted("distinct", len(shapes), f"{len({*map(exchanged, shapes)})} {exchange}")
    yield Counted("aligned", aligned.triples(), "triples without homes")
    keys = {key(entry.triple, exchange=True) for entry in kept}
    yield Counted("kept", len(kept), f"{len(keys)} {exchange}")


def _box_counts(axes: int) -> Iterator[Counted]:
    tried, covering, different, good = boxes.planes(axes)
    cuts = 3**axes
    yield Counted(
        "maps tried", tried + cuts, f"planes of digits in s steps, and {cuts} cuts in one"
    )
    yield Counted("covering", covering + cuts, "on every mesh")
    yield Counted("distinct", different, f"in steps, of which {good:,} send as little as a cut")
    yield Counted("triples", 216**axes, "of cuts in each phase and at home")
    yield Counted("aligned", cuts, f"of {27**axes:,} without homes: nests of one axis")
    if axes == 3:
        what = "on layers of Cannon's plane, what stays and what layers cut"
        yield Counted("rings", rings.TRIED, what)
    yield Counted("kept", len(box_classes(axes)), "in one step and in several")


def _plane(name: str, triple: Triple, words: Words) -> PlaneClass:
    text = f"{formula_text(words)}, over s^2"
    return PlaneClass(name, Affine(triple, name), text, triple, words)


def _without_homes() -> Iterator[PlaneClass]:
    for stays, hops, triple in aligned.fewest_hops():
        words: Words = tuple((a, b - 2 * a) for a, b in zip(hops.often, hops.once, strict=True))
        yield _plane(f"Aligned{''.join(stays)}", triple, words)


def _with_homes() -> Iterator[PlaneClass]:
    triples, best = [*homes.one_map(), *homes.several_maps()], dict[str, PlaneClass]()
    known: dict[tuple[str, ...], set[Words]] = {}
    for keeps in boxes.KEPT:
        sent = {triple: _affine(triple) for triple in (t._replace(keeps=keeps) for t in triples)}
        every = known[keeps] = {words for words in sent.values() if words is not None}
        with_fewer = set[Words]().union(*(known[few] for few in known if {*few} < {*keeps}))
        frontier = {w for w in every - with_fewer if not any(beats(other, w) for other in every)}
        for triple, affine in sent.items():
            if affine is not None and affine in frontier:
                name = homes_name(triple)
                if name not in best or _size(triple) < _size(best[name].triple):
                    best[name] = _plane(name, triple, affine)
    yield from best.values()


def _affine(triple: Triple) -> Words | None:
    """The words as `a s + b` blocks of each tensor, if they are so on three meshes."""
    counts = {side: homes.words(triple, side) for side in (3, 5, 7)}
    blocks = {side: [count / side**2 for count in counted] for side, counted in counts.items()}
    slopes = [(b - a) / 2 for a, b in zip(blocks[3], blocks[5], strict=True)]
    words = tuple(
        (round(slope), round(a - 3 * slope)) for slope, a in zip(slopes, blocks[3], strict=True)
    )
    fits = all(
        a * side + b == count
        for side, counted in blocks.items()
        for (a, b), count in zip(words, counted, strict=True)
    )
    return words if fits else None


def homes_name(triple: Triple) -> str:
    """What stays in each phase, and behind a `b` of which tensors several devices use a block."""
    stays = [_staying(rows) for rows in triple.phases]
    uses = {tensor for rows in triple.phases for tensor in TENSORS if _is_shared(rows, tensor)}
    shared = "".join(tensor for tensor in TENSORS if tensor in uses)
    kept = f"_Keep{''.join(triple.keeps)}" if triple.keeps else ""
    return f"Homes{''.join(stays)}{'b' if shared else ''}{shared}{kept}"


def _staying(rows: Map) -> str:
    """The tensor that does not move in a phase; `-` where all three do."""
    still = [
        tensor for tensor in TENSORS if not any(row[2] for row in homes.blocks_of(rows, tensor))
    ]
    return still[0] if still else "-"


def _is_shared(rows: Map, tensor: str) -> bool:
    one, other = homes.blocks_of(rows, tensor)
    return one[0] * other[1] == one[1] * other[0]


def _size(triple: Triple) -> tuple[int, int]:
    numbers = [x for rows in (*triple.phases, *triple.homes) for row in rows for x in row]
    return sum(map(abs, numbers)), sum(x < 0 for x in numbers)


# Placing a primitive


@dataclass(frozen=True)
class Placement:
    """Where a primitive is among the classes."""

    text: str
    near: tuple[str, ...] = ()
    """The class that it is, or those that send less, or those that send the same."""
    member_of: str | None = None
    """The name of the class that it is."""


def placed(primitive: Primitive, classes: tuple[SearchClass, ...]) -> Placement:
    """Place a primitive that is right for every side among the classes of as many axes."""
    if primitive.virtual:
        return Placement(f"outside of the space: virtual axis {', '.join(primitive.virtual)}")
    planes = tuple(entry for entry in classes if isinstance(entry, PlaneClass))
    return _on_plane(primitive, planes) if planes else _among_boxes(primitive, classes)


def _on_plane(primitive: Primitive, classes: tuple[PlaneClass, ...]) -> Placement:
    try:
        triple = triple_of(primitive)
    except OtherShapeError as error:
        return Placement(f"outside of the space: {error}")
    form, words = key(triple), words_of(primitive)
    for entry in classes:
        if entry.key == form:
            return Placement(f"is {entry.name}", (entry.name,), entry.name)
    less = tuple(
        entry.name
        for entry in classes
        if {*entry.triple.keeps} <= {*triple.keeps} and beats(entry.words, words)
    )
    same = tuple(entry.name for entry in classes if entry.words == words)
    return _near(f"in the space, {formula_text(words)}", less, same)


def _among_boxes(primitive: Primitive, classes: tuple[SearchClass, ...]) -> Placement:
    """By what the devices compute, keep and send on meshes of one side."""
    side = SMALL.get(len(primitive.axis_sides))
    if side is None or not classes:
        return Placement(f"outside of the space: {len(primitive.axis_sides)} axes")
    sent = parts_sent(primitive, side)
    form = min(work(primitive))
    less, same = [], []
    for entry in classes:
        if not isinstance(entry, BoxClass):
            continue
        parts = boxes.amounts(entry.sent, side)
        if parts == sent:
            if form in entry.key:
                return Placement(f"is {entry.name}", (entry.name,), entry.name)
            same.append(entry.name)
        elif all(one <= other for one, other in zip(parts, sent, strict=True)):
            less.append(entry.name)
    return _near("no class", tuple(less), tuple(same))


def _near(text: str, less: tuple[str, ...], same: tuple[str, ...]) -> Placement:
    near, what = (less, "less") if less else (same, "the same")
    if near:
        more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
        text += f": {', '.join(near[:NAMED])}{more} send{'s' * (len(near) == 1)} {what}"
    return Placement(text, near)


def work(primitive: Primitive) -> frozenset[bytes]:
    """Which devices and steps share a slice of M, N and K, for all orders of the axes.

    Slices have no names in it, as devices have none: of several orders each gives its bytes. Rows
    of a batch are rows. An axis may be counted backwards.
    """
    axes = len(primitive.axis_sides)
    sequence = on_side(primitive, SMALL[axes])
    shape = (3, sequence.steps, *[SMALL[axes]] * axes)
    numbers: dict[str, dict[object, int]] = {dim: {} for dim in DIMS}
    grids = {dim: np.zeros(shape, dtype=np.int64) for dim in DIMS}
    for phase, name in enumerate(PHASES):
        for step in range(sequence.steps):
            for rank, device in enumerate(sequence.coordinates):
                for dim, grid in grids.items():
                    block = tuple(
                        sequence.slices(name, rank, step).get(part, (0,))
                        for part in (("B", "M") if dim == "M" else (dim,))
                    )
                    known = numbers[dim].setdefault(block, len(numbers[dim]))
                    grid[(phase, step, *device)] = known
    kept = ",".join(sorted(primitive.keeps)) + ("" if primitive.home else " stays")
    forms = set()
    for order in permutations(range(axes)):
        for back in product((1, -1), repeat=axes):
            text = kept.encode()
            for grid in grids.values():
                turned = grid.transpose(0, 1, *(2 + axis for axis in order))
                for axis, way in enumerate(back):
                    turned = np.roll(np.flip(turned, 2 + axis), 1, 2 + axis) if way < 0 else turned
                _, first, names = np.unique(turned, return_index=True, return_inverse=True)
                text += first.argsort().argsort()[names.ravel()].tobytes()
            forms.add(text)
    return frozenset(forms)
