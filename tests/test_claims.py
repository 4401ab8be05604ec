"""Claims about a primitive on small meshes, against trying everything; and their names."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from test_certificates_primitive import Homeless, Slow, Unaligned, made

from primepar import Primitive
from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES, PrimePar
from primepar.partition.summa import Summa
from primepar.schedule.expression import evaluate, name, parse
from primepar.verify.primitive.claims_on_mesh import failing


def fails_by_hand(subject: Subject, claim: Claim, along: dict[str, int]) -> bool:
    """Whether a claim is wrong at some point: every choice is tried, one number at a time."""
    given = [(each, limit) for each, limit in claim.given if limit is not None]
    ranges = [range(evaluate(limit, along)) for _, limit in given]
    rooms = [range(evaluate(limit, along)) for _, limit in claim.found]
    for at in product(*ranges):
        point = {**along, **dict(zip((each for each, _ in given), at, strict=True))}
        chosen = product(*rooms)
        names = [each for each, _ in claim.found]
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
    subject = Subject(primitive, {dim: tuple(map(parse, own)) for dim, own in given.items()})
    wrong = Counter[bool]()
    for length in (1, 2):
        along = dict.fromkeys(primitive.side_names, length)
        for claim in claims(subject):
            point = failing(claim, along)
            assert (point is not None) == fails_by_hand(subject, claim, along), claim.name
            wrong[point is not None] += 1
    assert wrong[False] > 10
    assert (wrong[True] > 0) == (kind in (Slow, Unaligned, Homeless))


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
