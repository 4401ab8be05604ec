"""Which triples are one class: a key that is equal for those that differ by names and counting.

Nothing changes if the devices have other names (`d` becomes `G d + x`, where G has determinant 1 or
-1), or if the slices of a dim are counted backwards or from another start. Of tensors with homes
each phase may also go round the other way, and M, N and K may be exchanged together with the
phases: transposition exchanges W with I and backward with gradient, and the exchange of N with K
exchanges I with O and forward with backward. Where copies are kept only the first does, since
forward is before the others. Without homes the order of the phases counts: W has to
be back where forward starts, and I has not.

Example: `M=r, N=(r + c + t) % s, K=c` and `M=-c, N=(c - r - t) % s, K=-r` have one key.
"""

from __future__ import annotations

from itertools import permutations, product

from primepar.search.affine import DIMS, TENSORS, Row, Triple

Key = tuple[int, ...]
_SUMMED = ("N", "K", "M")
"""The dim over which forward, backward and gradient sum."""


def key(triple: Triple, *, exchange: bool = False) -> Key:
    """The smallest of the normal forms of all triples that differ by symmetry.

    M, N and K are exchanged only where it is asked for: what is sent for a shape changes with them.
    """
    stay = not triple.homes
    orders = list(permutations(range(3))) if exchange and not stay else [(0, 1, 2)]
    orders = [(0, 1, 2), (2, 1, 0)][: len(orders)] if triple.keeps else orders
    turns = [(1, 1, 1)] if stay else list(product((1, -1), repeat=3))
    forms = (
        _normal(_signed(_exchanged(triple, order), signs, turned))
        for order in orders
        for signs in product((1, -1), repeat=3)
        for turned in turns
    )
    return min(forms)


def _exchanged(triple: Triple, order: tuple[int, ...]) -> Triple:
    """M, N and K in another order, the phases and homes with them."""
    if order == (0, 1, 2):
        return triple
    summed = dict(zip(_SUMMED, triple.phases, strict=True))
    new = dict(zip(DIMS, (DIMS[place] for place in order), strict=True))
    phases = [tuple(summed[new[dim]][place] for place in order) for dim in _SUMMED]
    rows = {
        frozenset(DIMS[place] for place in dims): dict(
            zip((DIMS[p] for p in dims), home, strict=True)
        )
        for dims, home in zip(TENSORS.values(), triple.homes, strict=False)
    }
    homes, keeps = [], []
    names = dict(zip(rows, TENSORS, strict=True))
    for tensor, dims in TENSORS.items():
        old = [new[DIMS[place]] for place in dims]
        homes.append(tuple(rows[frozenset(old)][dim] for dim in old))
        keeps += [tensor] * (names[frozenset(old)] in triple.keeps)
    return Triple(tuple(phases), tuple(homes), tuple(keeps))


def _signed(triple: Triple, signs: tuple[int, ...], turned: tuple[int, ...]) -> Triple:
    """Slices counted backwards where a sign is -1, and phases that go round backwards."""

    def row(given: Row, sign: int, turn: int) -> Row:
        along = (1, 1, turn, 1, 1) if len(given) == 5 else (1, 1, 1)
        return tuple(sign * way * number for way, number in zip(along, given, strict=True))

    phases = [
        tuple(row(given, sign, turn) for given, sign in zip(rows, signs, strict=True))
        for rows, turn in zip(triple.phases, turned, strict=True)
    ]
    homes = [
        tuple(row(given, signs[place], 1) for given, place in zip(home, dims, strict=True))
        for home, dims in zip(triple.homes, TENSORS.values(), strict=False)
    ]
    return Triple(tuple(phases), tuple(homes), triple.keeps)


def _normal(triple: Triple) -> Key:
    """The triple with slices counted from where forward starts, and devices in a normal form."""
    first = [row[3] for row in triple.phases[0]]
    rows: list[tuple[int, ...]] = []
    of_dim: list[int] = []
    for phase in triple.phases:
        rows += [(row[2], row[3] - start, row[4]) for row, start in zip(phase, first, strict=True)]
        of_dim += [0, 1, 2]
    devices = [row[:2] for phase in triple.phases for row in phase]
    for home, dims in zip(triple.homes, TENSORS.values(), strict=False):
        rows += [(0, row[2] - first[place], 0) for row, place in zip(home, dims, strict=True)]
        of_dim += dims
        devices += [row[:2] for row in home]
    left, right = _columns([row[0] for row in devices], [row[1] for row in devices])
    starts = [row[1] for row in rows]
    if any(starts):
        starts = _smallest(
            starts,
            [left[x] - left[dim] for x, dim in enumerate(of_dim)],
            [right[x] - right[dim] for x, dim in enumerate(of_dim)],
        )
    moves = (*(row[0] for row in rows), *(row[2] for row in rows))
    return (*left, *right, *starts, *moves, *(tensor in triple.keeps for tensor in TENSORS))


def _columns(a: list[int], b: list[int]) -> tuple[list[int], list[int]]:
    """The Hermite normal form of two columns: of all that have the same whole combinations, one."""
    first = next((place for place in range(len(a)) if a[place] or b[place]), 0)
    while b[first]:  # Euclid: the first row ends as (g, 0)
        factor = a[first] // b[first]
        a, b = b, [x - factor * y for x, y in zip(a, b, strict=True)]
    if a[first] < 0:
        a = [-x for x in a]
    second = next((place for place, number in enumerate(b) if number), None)
    if second is not None:
        if b[second] < 0:
            b = [-x for x in b]
        factor = a[second] // b[second]
        a = [x - factor * y for x, y in zip(a, b, strict=True)]
    return a, b


def _smallest(starts: list[int], along_r: list[int], along_c: list[int]) -> list[int]:
    """Device (0, 0) chosen so that the constants are smallest, those of forward staying 0."""
    if not any(along_r) and not any(along_c):
        return starts
    moved = (
        [x + r * p + c * q for x, p, q in zip(starts, along_r, along_c, strict=True)]
        for r, c in product(range(-3, 4), repeat=2)
    )
    return min(moved, key=lambda numbers: (sum(map(abs, numbers)), numbers))
