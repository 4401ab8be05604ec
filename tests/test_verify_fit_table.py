"""Maps are called with arrays on the meshes that fits look at, and give what numbers give."""

from __future__ import annotations

from itertools import product

import pytest

from primepar import ANY, Primitive, where
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.sequence import Element
from primepar.verify.primitive.fit import samples
from primepar.verify.primitive.fit_sender import FitError
from primepar.verify.primitive.fit_table import Tables


@pytest.mark.parametrize("name", PRIMITIVES)
def test_arrays_give_what_numbers_give(name: str) -> None:
    seen = samples(PRIMITIVES[name]())
    assert not any(sample.tables.by_number for sample in seen)
    for sample in seen:
        numbers = Tables(sample.element, by_number=True)
        assert sample.tables.is_like(numbers)
        assert sample.tables.radices == numbers.radices == sample.element.radices
        assert list(sample.tables.radices) == list(numbers.radices)


class Ring(Primitive):
    """A ring of devices, each with a slice of M."""

    axes = ("r",)

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M=r)


class LookedUp(Ring):
    """Refuses arrays: it looks an index up."""

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M={at: at for at in range(s)}[r])


class OtherForArrays(Ring):
    """Takes arrays, and gives others for them."""

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        t += 1 if isinstance(t, int) else 2
        return dict(M=(r, t))


class OpenOnTheFirst(Ring):
    """Leaves the digit open on one device."""

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M=ANY if isinstance(r, int) and r == 0 else r)


class Negative(Ring):
    """Gives no slice on a long ring."""

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M=where(r < 4, r, -1))


@pytest.mark.parametrize("primitive", [LookedUp(), OtherForArrays()])
def test_a_map_that_is_another_one_for_arrays_is_called_by_number(primitive: Primitive) -> None:
    for sample in samples(primitive):
        assert sample.tables.by_number is isinstance(primitive, OtherForArrays)
        assert sample.tables.radices == sample.element.radices
        columns = sample.tables.maps["forward"]["M"]
        for device, step in product(sample.devices, range(sample.element.steps)):
            own = tuple(int(column[*device, step]) for column in columns)  # type: ignore[index]
            assert own == sample.element.digits["forward", device, step]["M"]


def test_a_digit_that_is_open_on_some_devices_only_has_no_table() -> None:
    (first, _) = samples(OpenOnTheFirst())
    assert first.tables.by_number
    with pytest.raises(FitError) as raised:
        first.block("forward", "I")
    assert str(raised.value) == "a digit is open on some devices or at some steps only"


def test_what_is_no_slice_is_told_as_for_numbers() -> None:
    with pytest.raises(PrimitiveError) as raised:
        samples(Negative())
    assert str(raised.value) == (
        "Negative.forward: expected a slice index of M that is 0 or more, got -1 at r=4, t=0, "
        "sides (5,): wrap it with % of the side"
    )
    with pytest.raises(PrimitiveError) as told:
        Element(Negative(), (5,)).radices  # noqa: B018
    assert str(told.value) == str(raised.value)
