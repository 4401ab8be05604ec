"""Claims about a primitive on small meshes, against trying everything; and their names."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from test_certificates_primitive import Homeless, Slow, Unaligned, made

from primepar import Primitive
from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa
from primepar.schedule.expression import evaluate, name, parse
from primepar.schedule.operators import PHASES, PRODUCTS
from primepar.schedule.tracing import maps_of
from primepar.verify.primitive.claims_on_mesh import failing


def fails_by_hand(subject: Subject, claim: Claim, along: dict[str, int]) -> bool:
    """Whether a claim is wrong at some point: every choice is tried, one number at a time."""
    given = [(name, limit) for name, limit in claim.given if limit is not None]
    ranges = [range(evaluate(limit, along)) for _, limit in given]
    rooms = [range(evaluate(limit, along)) for _, limit in claim.witnesses]
    for values in product(*ranges):
        point = {**along, **dict(zip((name for name, _ in given), values, strict=True))}
        chosen = product(*rooms)
        names = [name for name, _ in claim.witnesses]
        if not any(
            evaluate(claim.body, {**point, **dict(zip(names, choice, strict=True))})
            for choice in chosen
        ):
            return True
    return False


@pytest.mark.parametrize(
    "kind", [PrimePar, Summa, Slow, Unaligned, Homeless, PRIMITIVES["tesseract"]]
)
def test_claims_on_small_meshes_are_what_trying_everything_gives(kind: type[Primitive]) -> None:
    primitive = kind()
    slices = {"tesseract": made("tesseract"), "primepar": made("primepar")}
    given = slices["tesseract" if "e" in primitive.axis_sides else "primepar"].slices
    subject = Subject(primitive, {dim: tuple(map(parse, counts)) for dim, counts in given.items()})
    wrong = Counter[bool]()
    for length in (1, 2):
        along = dict.fromkeys(primitive.side_names, length)
        for claim in claims(subject):
            point = failing(claim, along)
            assert (point is not None) == fails_by_hand(subject, claim, along), claim.name
            wrong[point is not None] += 1
    assert wrong[False] > 10
    assert (wrong[True] > 0) == (kind in (Slow, Unaligned, Homeless))


@pytest.mark.parametrize("method", PRIMITIVES)
def test_no_claim_is_about_nothing_on_any_mesh_up_to_side_6(method: str) -> None:
    """A claim about all values of some names is empty where there are none, and states so.

    Where a mesh has three sides, up to side 3.
    """
    primitive, certificate = PRIMITIVES[method](), made(method)
    slices = {dim: tuple(map(parse, counts)) for dim, counts in certificate.slices.items()}
    sides = primitive.side_names
    most = 6 if len(sides) < 3 else 3
    meshes = np.array([*product(range(1, most + 1), repeat=len(sides))])
    along = dict(zip(sides, meshes.T, strict=True))  # arrays of all meshes
    one_step, empty = evaluate(maps_of(primitive).steps, along) == 1, set()
    for repeats in (False, True):
        for claim in claims(Subject(primitive, slices, repeats)):
            limits = [limit for _, limit in claim.given if limit is not None]
            has_values = np.ones(len(meshes), dtype=bool)
            for limit in limits:
                has_values &= evaluate(limit, along) >= 1
            assert (has_values != evaluate(claim.empty_if, along)).all(), claim.name
            assert (has_values | one_step).all(), claim.name
            if not has_values.all():
                empty.add(claim.name)
    moves = {f"{phase} {tensor}" for phase in PHASES for tensor in PRODUCTS[phase].reads}
    assert empty <= moves  # from one step to the next


def test_what_all_claims_rest_on_is_asked_of_every_side() -> None:
    first = next(iter(claims(Subject(PrimePar(), {"M": (name("s") - 1,)}))))
    assert (first.name, first.given, first.is_precondition) == ("steps", (("s", None),), True)
    assert str(first.condition) == "True & (s >= 1) & (s - 1 >= 1)"


class Clashing(Primitive):
    """Its second axis is called like a device that is to be found."""

    axes = ("r", "at_r")

    def steps(self, s: Any) -> Any:
        return 1

    def forward(self, r: Any, at_r: Any, t: Any, s: Any) -> dict[str, Any]:
        return dict(M=r, N=at_r)


def test_axes_that_are_called_like_names_of_claims_are_refused() -> None:
    subject = Subject(Clashing(), {"M": (name("s"),), "N": (name("s"),)})
    with pytest.raises(PrimitiveError) as raised:
        list(claims(subject))
    assert str(raised.value) == (
        "Clashing.axes: expected names of axes and sides, got 'at_r': take a letter or a word that "
        "does not begin with at_ or in_"
    )
