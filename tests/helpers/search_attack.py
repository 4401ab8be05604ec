"""`make attack`: the prover on random triples, and keys of classes, against integers.

Triples are drawn three ways: coefficients at random, a class of the search with a few numbers
changed, and a class under other names. The check here knows (device, step) -> block alone. What is
right on sides 1 to 5 has to be proved, and what is wrong on one of them refuted: a sample of both
goes to the prover, each with a limit of time. What it does not decide by then is counted apart, and
is no contradiction. Then keys are compared with isomorphism of programs: two triples whose devices
and slices are only named otherwise are the same set of devices for some order of the slices. No two
classes may be that. The command ends with 1 if a verdict or a key is wrong.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise, permutations, product

import numpy as np

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS
from primepar.search.affine import TENSORS, Affine, Map, Row, Triple
from primepar.search.covering import Array
from primepar.search.run import plane_classes
from primepar.search.symmetry import key
from primepar.verify.primitive.proof import verify_primitive

SIDES = (1, 2, 3, 4, 5)
SECONDS = 20.0
"""For one proof."""


def places(rows: Map, s: int) -> Array:
    """(m, n, k) for every step and device: an array of s, s^2 and 3."""
    t, r, c = np.indices((s, s, s)).reshape(3, s, s * s)
    parts = [x[0] * r + x[1] * c + x[2] * t + x[3] + x[4] * (t == s - 1) for x in rows]
    return np.stack(parts, axis=-1) % s


def is_right_on(triple: Triple, s: int) -> bool:
    """Whether a triple is right on one mesh: what each device has is followed step by step."""
    maps = dict(zip(PHASES, (places(rows, s) for rows in triple.phases), strict=True))
    for points in maps.values():
        if len(np.unique(points @ (s * s, s, 1))) < s**3:
            return False
    blocks = {
        (phase, tensor): maps[phase][..., TENSORS[tensor.removeprefix("d")]] @ (s, 1)
        for phase, product_ in PRODUCTS.items()
        for tensor in (*product_.reads, product_.writes)
    }
    if triple.homes:
        r, c = np.indices((s, s)).reshape(2, -1)
        at = [[(x[0] * r + x[1] * c + x[2]) % s for x in home] for home in triple.homes]
        return all(len(np.unique(one * s + other)) == s * s for one, other in at)
    for phase in PHASES:
        for tensor in PRODUCTS[phase].reads:
            steps = blocks[phase, tensor]
            if not all(np.isin(new, old).all() for old, new in pairwise(steps)):
                return False
    for (phase, tensor), then in NEXT_USE.items():
        if not np.isin(blocks[then, tensor][0], blocks[phase, tensor][-1]).all():
            return False
    ends = blocks["forward", "O"][-1] == blocks["backward", "dO"][0]
    return bool((ends & (blocks["gradient", "dW"][-1] == blocks["forward", "W"][0])).all())


def drawn(rng: random.Random, classes: list[Triple]) -> Triple:
    """A triple at random, one near to a class, or a class under other names."""
    way = rng.randrange(8)
    if way == 0:
        rows = [[rng.choice((-1, 0, 1, 2)) for _ in range(5)] for _ in range(9)]
        return Triple(tuple(tuple(map(tuple, rows[x : x + 3])) for x in (0, 3, 6)))
    triple = renamed(rng, rng.choice(classes))
    return triple if way < 4 else changed(rng, triple)


def changed(rng: random.Random, triple: Triple) -> Triple:
    """A triple with one or two numbers changed."""
    phases = [[list(row) for row in rows] for rows in triple.phases]
    homes = [[list(row) for row in rows] for rows in triple.homes]
    for _ in range(rng.randint(1, 2)):
        row = rng.choice(rng.choice(phases + homes))
        row[rng.randrange(len(row))] += rng.choice((-1, 1))
    every, at_home = (tuple(tuple(map(tuple, rows)) for rows in part) for part in (phases, homes))
    return triple._replace(phases=every, homes=at_home)


def renamed(rng: random.Random, triple: Triple) -> Triple:
    """The same triple: devices under other names, slices from another start or backwards."""
    a, b, c, d = rng.choice([(1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 0, 1), (-1, 0, 0, 1), (2, 1, 1, 1)])
    signs = [rng.choice((1, -1)) for _ in range(3)]
    starts, here = [rng.randint(-1, 1) for _ in range(3)], [rng.randint(-1, 1) for _ in range(2)]

    def row(given: Row, dim: int) -> Row:
        r, k = given[0] * a + given[1] * c, given[0] * b + given[1] * d
        rest = list(given[2:])
        one = len(rest) - 2 if len(rest) == 3 else 0
        rest[one] += given[0] * here[0] + given[1] * here[1]
        rest = [signs[dim] * x for x in rest]
        rest[one] += starts[dim]
        return (signs[dim] * r, signs[dim] * k, *rest)

    return Triple(
        tuple(tuple(row(x, dim) for dim, x in enumerate(rows)) for rows in triple.phases),
        tuple(
            tuple(row(x, dim) for x, dim in zip(home, dims, strict=True))
            for home, dims in zip(triple.homes, TENSORS.values(), strict=False)
        ),
        triple.keeps,
    )


def program_key(triple: Triple, s: int) -> tuple[tuple[str, ...], list[bytes]]:
    """The devices, each with all that it has and does, under the smallest order of slices.

    With homes each phase may also go round the other way.
    """
    work = [places(rows, s) for rows in triple.phases]
    r, c = np.indices((s, s)).reshape(2, -1)
    at_home = [(x[0] * r + x[1] * c + x[2]) % s for home in triple.homes for x in home]
    dims = [dim for tensor in TENSORS.values() for dim in tensor][: len(at_home)]
    keys = []
    for ways in product((1, -1)[: 1 + bool(triple.homes)], repeat=3):
        steps = np.concatenate([x[::way] for x, way in zip(work, ways, strict=True)])
        for orders in product(map(np.array, permutations(range(s))), repeat=3):
            named = [order[steps[..., dim]] for dim, order in enumerate(orders)]
            named += [orders[dim][home][None] for dim, home in zip(dims, at_home, strict=True)]
            keys.append(sorted(row.tobytes() for row in np.concatenate(named).T.astype(np.int8)))
    return triple.keeps, min(keys)


def programs(triple: Triple) -> str:
    """What triples share whose programs are isomorphic on sides 2 and 3."""
    return str([program_key(triple, s) for s in (2, 3)])


def attack(count: int, sample: int) -> Counter[str]:
    """Prove a sample of the right and of the wrong of `count` triples; how many of each kind."""
    rng, classes = random.Random(0), [entry.triple for entry in plane_classes()]
    counts: Counter[str] = Counter()
    triples = [drawn(rng, classes) for _ in range(count)]
    for is_right, called in ((True, "right"), (False, "wrong")):
        of_kind = [t for t in triples if all(is_right_on(t, s) for s in SIDES) == is_right]
        counts[called] = len(of_kind)
        for triple in of_kind[:: max(len(of_kind) // sample, 1)][:sample]:
            verdict = verify_primitive(Affine(triple), timeout=SECONDS).verdict
            counts[f"{called}, {verdict}"] += 1
    return counts


def compared_keys(count: int) -> Counter[str]:
    """Compare keys with isomorphism on sides 2 and 3, of pairs of classes under other names."""
    rng = random.Random(0)
    classes = [entry.triple for entry in plane_classes()]
    counts: Counter[str] = Counter()
    for _ in range(count):
        one = rng.choice(classes)
        other = renamed(rng, one if rng.random() < 0.5 else rng.choice(classes))
        same, equal = key(one) == key(other), programs(one) == programs(other)
        words = ("equal" if is_equal else "differ" for is_equal in (same, equal))
        counts["keys {}, programs {}".format(*words)] += 1
    return counts


def main() -> int:
    """Attack with 2,000 triples and 400 pairs."""
    counts = attack(2_000, sample=12) + compared_keys(400)
    counts["classes"] = len(plane_classes())
    counts["of them not isomorphic"] = len({programs(entry.triple) for entry in plane_classes()})
    print("\n".join(f"{number:6,}  {kind}" for kind, number in counts.items()))
    wrong = {"right, refuted", "wrong, proved", "keys equal, programs differ"}
    return int(bool(wrong & {*counts}) or counts["classes"] > counts["of them not isomorphic"])


if __name__ == "__main__":
    sys.exit(main())
