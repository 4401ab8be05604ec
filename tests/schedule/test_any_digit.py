"""`ANY` leaves a digit of a slice index open, at any place of it, in homes and in maps."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from one_mesh import verify_side

from primepar import ANY, Primitive, where
from primepar.errors import PrimitiveError, SymbolicError
from primepar.reference.check import check
from primepar.schedule import Sequence, lower
from primepar.schedule.ledger import moves, moves_text
from primepar.schedule.operators import PHASES
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.tracing import maps_of
from primepar.verify.primitive.proof import verify_primitive


class OneStep(Primitive):
    """Columns of K along `e`, rows of M along `r`; a device holds every `d`-th slice of M."""

    axes = {"e": "d", "r": "q"}

    def steps(self, d: Value, q: Value) -> Value:
        return 1


class Strided(OneStep):
    """Sequence parallelism along `e`, with the rows of a device `r` spread over all of M."""

    def forward(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(ANY, r), K=e)

    def home(self, tensor: str, e: Value, r: Value, d: Value, q: Value) -> Slices:
        return {"I": dict(M=(e, r)), "W": dict(K=e), "O": dict(M=(ANY, r), K=e)}[tensor]


class NoHomes(OneStep):
    """Tensors stay where the maps have them; gradient names the digit that others leave open."""

    def forward(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(ANY, r), K=e)

    def gradient(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(0, r), K=e)


class Replicas(Strided):
    """`Strided` whose I is resident whole along `e`."""

    def home(self, tensor: str, e: Value, r: Value, d: Value, q: Value) -> Slices:
        home = super().home(tensor, e, r, d, q)
        return dict(M=(ANY, r), N=e) if tensor == "I" else home


RIGHT: tuple[type[Primitive], ...] = (Strided, NoHomes, Replicas)


@pytest.mark.parametrize("kind", RIGHT)
def test_an_open_digit_is_proved_for_every_side_and_for_each(kind: type[Primitive]) -> None:
    report = verify_primitive(kind())
    assert [(prop.verdict, prop.reason) for prop in report.properties] == [("proved", None)] * 6
    for sides in product((1, 2, 3), repeat=2):
        assert verify_side(kind(), sides).verdict == "proved"
        assert check(Sequence.of(kind(), *sides)).message is None


def test_an_open_digit_takes_every_value() -> None:
    sequence = Sequence.of(Strided(), 2, 3)
    assert sequence.grid == {"M": 6, "N": 1, "K": 2}
    assert [sequence.slices("forward", rank, 0)["M"] for rank in range(6)] == [
        (0, 3), (1, 4), (2, 5), (0, 3), (1, 4), (2, 5)
    ]  # fmt: skip
    assert sequence.home("I", 4) == ((4, 0),)
    assert sequence.home("O", 4) == ((1, 1), (4, 1))
    assert moves_text(moves(lower(Sequence.of(Strided(), 3, 2)))) == (
        "all-gather I 2; reduce-scatter dI 1; all-reduce dW 1"
    )


class Digits(Primitive):
    """Names `N` as it is given."""

    axes = ("r",)

    def __init__(self, index: Any) -> None:
        self.index = index

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=self.index)


@pytest.mark.parametrize(
    ("index", "digits"),
    [
        ((0, ANY), {"M": ("r",), "N": ("0",)}),
        ((0, ANY, 1, ANY, ANY), {"M": ("r",), "N": ("0", "*", "1")}),
        ((ANY,), {"M": ("r",)}),
        (ANY, {"M": ("r",)}),
    ],
)
def test_an_open_digit_at_the_end_is_one_that_is_left_out(
    index: Any, digits: dict[str, tuple[str, ...]]
) -> None:
    for phase in PHASES:
        traced = maps_of(Digits(index)).phases[phase]
        assert {dim: tuple(map(str, index)) for dim, index in traced.items()} == digits


# Wrong uses


class NeedsMore(OneStep):
    """Gradient needs columns of dO that backward has on other devices."""

    def forward(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(ANY, r), K=e)

    def gradient(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(e, r))


class NeedsNobodys(NeedsMore):
    """Backward has the first column of dO only, so that gradient does not receive the others."""

    def backward(self, e: Value, r: Value, t: Value, d: Value, q: Value) -> Slices:
        return dict(M=(e, r), K=0)


def test_a_phase_may_need_blocks_that_the_last_one_left_on_several_devices() -> None:
    assert verify_primitive(NeedsMore()).verdict == "proved"
    for sides in ((2, 1), (3, 1), (2, 2)):
        assert verify_side(NeedsMore(), sides).verdict == "proved"
        assert check(Sequence.of(NeedsMore(), *sides)).equal


def test_a_phase_that_needs_what_the_last_one_left_nowhere_is_refuted() -> None:
    report = verify_primitive(NeedsNobodys())
    assert report["alignment"].counterexample == (
        "d=2, q=1 (2x1 devices): gradient starts on device 0 (e=0, r=0): expected dO[0,1] here, "
        "got dO[0,0] from backward: end backward where gradient starts, or one hop away"
    )
    for d, right in ((1, True), (2, False)):
        assert verify_side(NeedsNobodys(), (d, 1)).verdict == ("proved" if right else "refuted")
        assert check(Sequence.of(NeedsNobodys(), d, 1)).equal == right


NO_NUMBER = "ANY is no number, write it alone as a digit, like N=(c, ANY, b)"
LANGUAGE = "expected +, -, *, //, %, comparisons, &, |, ~ and where"


@pytest.mark.parametrize(
    "index",
    [lambda r, s: ANY + 1, lambda r, s: (r - ANY) % s, lambda r, s: where(r > ANY, 0, 1),
     lambda r, s: -ANY, lambda r, s: (ANY % s, r), lambda r, s: where(r == 0, ANY, r)],
)  # fmt: skip
def test_a_sum_with_an_open_digit_is_refused(index: Any) -> None:
    class Mine(Primitive):
        axes = ("r",)

        def forward(self, r: Value, t: Value, s: Value) -> Slices:
            return dict(M=index(r, s))

    with pytest.raises(PrimitiveError) as error:
        verify_primitive(Mine())
    assert str(error.value).startswith(f"{__file__}:")
    assert str(error.value).endswith(f": Mine.forward: {LANGUAGE}, got {NO_NUMBER}")


class OpenOnTheFirst(Primitive):
    """Data parallelism whose first device holds all of W, and the others on a slice."""

    axes = ("d",)

    def steps(self, s: Value) -> Value:
        return 1

    def forward(self, d: Value, t: Value, s: Value) -> Slices:
        return dict(M=d)

    def home(self, tensor: str, d: Value, s: Value) -> Slices:
        whole = where(d == 0, ANY, d)
        return {"I": dict(M=d), "W": dict(N=(whole,)), "O": dict(M=d)}[tensor]


def test_a_digit_that_only_some_devices_leave_open_is_refused() -> None:
    for read in (verify_primitive, lambda primitive: verify_side(primitive, (2,))):
        with pytest.raises(SymbolicError) as error:
            read(OpenOnTheFirst())
        assert str(error.value).endswith(f": OpenOnTheFirst.home: {LANGUAGE}, got {NO_NUMBER}")
