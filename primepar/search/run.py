"""The search from maps to proved classes, and where a primitive is placed among them.

    maps tried       4^9: every coefficient of r, c and t in M, N and K from {-1, 0, 1, 2}
    covering         those that compute each sub-operator once on every mesh
    distinct         those that differ by more than names of devices and the way slices are counted
    aligned          triples without homes whose tensors end where the next phase starts
    proved           classes that are kept, each certified for every side

Kept of triples with homes is a frontier: no other sends less of one tensor and no more of any. Of
those that send the same one is kept for each choice of the tensors that are broadcast, the one with
the smallest coefficients. Of triples without homes the one with the fewest hops is kept for each
choice of the tensor that stays in forward, backward and gradient. What is not kept is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from primepar.certify.certificate_format import PrimitiveCertificate
from primepar.certify.primitive import certify_primitive
from primepar.partition import PRIMITIVES
from primepar.schedule.primitive import Primitive
from primepar.search import aligned, homes
from primepar.search.affine import TENSORS, Affine, Map, OtherShapeError, Triple, triple_of
from primepar.search.covering import MAPS, covers, distinct, exchanged
from primepar.search.measures import Words, beats, formula_text, words_of
from primepar.search.symmetry import Key, key
from primepar.verify.primitive.proof import prove


@dataclass(frozen=True)
class SearchClass:
    """A class: one of its triples, what it sends, and the certificate of its proof."""

    name: str
    """`AlignedOIW`, or `HomesOOObW`: what stays in each phase, and what is broadcast."""
    triple: Triple
    words: Words
    certificate: PrimitiveCertificate | None = None

    @cached_property
    def primitive(self) -> Affine:
        """The primitive of its triple."""
        return Affine(self.triple, self.name)

    @cached_property
    def key(self) -> Key:
        """What all triples of the class share."""
        return key(self.triple)


@dataclass(frozen=True)
class SearchCounts:
    """How many maps and triples were tried, and what was left at each stage."""

    maps: int
    covering: int
    distinct: int
    exchanged: int
    """Distinct, where the exchange of M, N and K is no difference either."""
    aligned: int
    kept: int
    classes: int
    """Kept, where the exchange of M, N and K is no difference."""
    proved: int


@dataclass(frozen=True)
class Search:
    """The result: the classes, what is known of them by name, and the counts."""

    classes: tuple[SearchClass, ...]
    counts: SearchCounts
    known: dict[str, Placement]
    """Name of a registered primitive -> where it is placed."""


def search(tick: Callable[[str], object] = str) -> Search:
    """Search the maps on two axes of side s in s steps, and prove what is kept."""
    kept = candidates()
    classes = []
    for entry in kept:
        tick(entry.name)
        certificate = prove(entry.primitive).certificate
        if certificate is not None:
            certify_primitive(certificate, entry.primitive)
        classes.append(SearchClass(entry.name, entry.triple, entry.words, certificate))
    proved = tuple(entry for entry in classes if entry.certificate is not None)
    shapes = distinct()
    counts = SearchCounts(
        len(MAPS),
        int(covers().sum()),
        len(shapes),
        len({*map(exchanged, shapes)}),
        aligned.triples(),
        len(kept),
        len({key(entry.triple, exchange=True) for entry in kept}),
        len(proved),
    )
    known = {name: placed(kind(), proved) for name, kind in PRIMITIVES.items()}
    return Search(proved, counts, known)


@cache
def candidates() -> tuple[SearchClass, ...]:
    """What is kept, before it is proved."""
    return (*_without_homes(), *_with_homes())


def _without_homes() -> Iterator[SearchClass]:
    for stays, hops, triple in aligned.fewest_hops():
        words: Words = tuple((a, b - 2 * a) for a, b in zip(hops.often, hops.once, strict=True))
        yield SearchClass(f"Aligned{''.join(stays)}", triple, words)


def _with_homes() -> Iterator[SearchClass]:
    triples = [*homes.one_map(), *homes.several_maps()]
    sent = {triple: _affine(triple) for triple in triples}
    known = {words for words in sent.values() if words is not None}
    frontier = {words for words in known if not any(beats(other, words) for other in known)}
    best: dict[str, SearchClass] = {}
    for triple, affine in sent.items():
        if affine is not None and affine in frontier:
            name = homes_name(triple)
            if name not in best or _size(triple) < _size(best[name].triple):
                best[name] = SearchClass(name, triple, affine)
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
    return f"Homes{''.join(stays)}{'b' if shared else ''}{shared}"


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
    """Place a primitive that is right for every side among the classes."""
    try:
        triple = triple_of(primitive)
    except OtherShapeError as error:
        return Placement(f"outside of the space: {error}")
    form, words = key(triple), words_of(primitive)
    for entry in classes:
        if entry.key == form:
            return Placement(f"is {entry.name}", (entry.name,), entry.name)
    less = tuple(entry.name for entry in classes if beats(entry.words, words))
    same = tuple(entry.name for entry in classes if entry.words == words)
    near, what = (less, "less") if less else (same, "the same")
    text = f"in the space, {formula_text(words)}"
    if near:
        text += f": {', '.join(near)} send{'s' * (len(near) == 1)} {what}"
    return Placement(text, near)
