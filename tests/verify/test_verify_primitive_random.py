"""The verdict for every side agrees with each mesh looked at by itself, for random maps."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from one_mesh import verify_side

from primepar import Primitive, where
from primepar.reference.check import check
from primepar.schedule import Movement, Sequence
from primepar.schedule.evidence import MapFault
from primepar.schedule.operators import PHASES
from primepar.schedule.words import map_sentence
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.primitive.smallest_mesh import FAULTS, MOST_DEVICES_AFTER

Form = tuple[int, ...]
"""Coefficients of r, c, t and 1, and of 1 at the last step only."""
Maps = dict[str, dict[str, Form]]

PRIMEPAR: Maps = {
    "forward": {"M": (1, 0, 0, 0, 0), "N": (1, 1, 1, 0, 0), "K": (0, 1, 0, 0, 0)},
    "backward": {"M": (1, 0, 0, 0, 0), "N": (1, 1, 0, -1, 0), "K": (0, 1, 1, 0, 0)},
    "gradient": {"M": (1, 0, 1, 0, 0), "N": (1, 1, 0, -1, 1), "K": (0, 1, 0, -1, 1)},
}
TRAVELLING: Maps = {
    "forward": {"M": (1, 1, 1, 0, 0), "N": (1, 0, 0, 0, 0), "K": (0, 1, 0, 0, 0)},
    "backward": {"M": (1, 1, 1, -1, 0), "N": (1, 0, 0, 0, 0), "K": (0, 1, 0, 0, 0)},
    "gradient": {"M": (1, 1, 1, -2, 0), "N": (1, 0, 0, 0, 0), "K": (0, 1, 0, 0, 0)},
}

SUMMA: Maps = {
    phase: {"M": (1, 0, 0, 0, 0), "N": (0, 0, 1, 0, 0), "K": (0, 1, 0, 0, 0)} for phase in PHASES
}
INPUT_STAYS: Maps = {
    phase: {"M": (1, 0, 0, 0, 0), "N": (0, 1, 0, 0, 0), "K": (1, 1, 1, 0, 0)} for phase in PHASES
}
HOMES: Maps = {
    "I": {"M": (1, 0, 0, 0, 0), "N": (0, 1, 0, 0, 0)},
    "W": {"N": (1, 0, 0, 0, 0), "K": (0, 1, 0, 0, 0)},
    "O": {"M": (1, 0, 0, 0, 0), "K": (0, 1, 0, 0, 0)},
}
SKEWED: Maps = {
    "I": {"M": (1, 0, 0, 0, 0), "N": (0, 1, 0, 0, 0)},
    "W": {"N": (0, 1, 0, 0, 0), "K": (1, 1, 0, 0, 0)},
    "O": {"M": (1, 0, 0, 0, 0), "K": (1, 1, 0, 0, 0)},
}

coefficients = st.sampled_from((-1, 0, 1, 2))
forms = st.tuples(*[coefficients] * 3, st.sampled_from((-1, 0, 1)), st.sampled_from((0, 0, 1)))
phases = st.dictionaries(st.sampled_from("MNK"), forms, min_size=1)
any_maps = st.fixed_dictionaries(dict.fromkeys(PHASES, phases))


@st.composite
def nearly_right(draw: st.DrawFn) -> Maps:
    """A right primitive with up to two coefficients changed."""
    right = draw(st.sampled_from((PRIMEPAR, TRAVELLING)))
    return changed(draw, right, draw(st.integers(0, 2)), 4)


def changed(draw: st.DrawFn, maps: Maps, times: int, last_place: int) -> Maps:
    """The maps with this many coefficients drawn anew."""
    new = {name: dict(forms) for name, forms in maps.items()}
    for _ in range(times):
        forms = new[draw(st.sampled_from(sorted(new)))]
        dim, place = draw(st.sampled_from(sorted(forms))), draw(st.integers(0, last_place))
        forms[dim] = (*forms[dim][:place], draw(coefficients), *forms[dim][place + 1 :])
    return new


@st.composite
def with_homes(draw: st.DrawFn) -> tuple[Maps, Maps]:
    """Maps and homes of right primitives, mixed, with some coefficients changed."""
    maps, homes = draw(
        st.sampled_from(((SUMMA, HOMES), (INPUT_STAYS, SKEWED), (SUMMA, SKEWED), (PRIMEPAR, HOMES)))
    )
    maps = changed(draw, maps, draw(st.sampled_from((0, 0, 1))), 3)
    homes = changed(draw, homes, draw(st.integers(0, 2)), 1)
    tensor = draw(st.sampled_from((None, None, *"IWO")))
    if tensor:
        homes[tensor].pop(draw(st.sampled_from(sorted(homes[tensor]))))
    return maps, homes


def primitive_of(maps: Maps, homes: Maps | None = None) -> Primitive:
    """The primitive with these maps, and homes if any, on an s x s mesh."""

    def call(phase: str, r: Any, c: Any, t: Any, s: Any) -> dict[str, Any]:
        last = where(t == s - 1, 1, 0)
        return {
            dim: (a * r + b * c + d * t + e + f * last) % s
            for dim, (a, b, d, e, f) in maps[phase].items()
        }

    class Random(Primitive):
        axes = ("r", "c")

        def forward(self, *args: Any) -> dict[str, Any]:
            return call("forward", *args)

        def backward(self, *args: Any) -> dict[str, Any]:
            return call("backward", *args)

        def gradient(self, *args: Any) -> dict[str, Any]:
            return call("gradient", *args)

    class RandomHomes(Random):
        def home(self, tensor: str, r: Any, c: Any, s: Any) -> dict[str, Any]:
            forms = (homes or {})[tensor].items()
            return {dim: (a * r + b * c) % s for dim, (a, b, *_) in forms}

    return RandomHomes() if homes else Random()


def faults(primitive: Primitive, side: int) -> dict[str, MapFault]:
    """Property -> its first fault on one mesh."""
    movement = Movement(Sequence.of(primitive, side))
    first = {name: next(search(movement), None) for name, search in FAULTS.items()}
    return {name: fault for name, fault in first.items() if fault is not None}


@settings(max_examples=settings().max_examples // 8)
@given(st.one_of(nearly_right(), nearly_right(), any_maps))
def test_the_verdict_for_every_side_agrees_with_every_small_side(maps: Maps) -> None:
    agrees_with_every_small_side(primitive_of(maps))


@settings(max_examples=settings().max_examples // 4)
@given(with_homes())
def test_so_does_the_verdict_on_primitives_with_homes(drawn: tuple[Maps, Maps]) -> None:
    agrees_with_every_small_side(primitive_of(*drawn))


def agrees_with_every_small_side(primitive: Primitive) -> None:
    report = verify_primitive(primitive)
    wrong = {side: faults(primitive, side) for side in range(1, 6)}
    for result in report.properties:
        first = next((side for side in wrong if result.name in wrong[side]), None)
        if first is None:
            assert result.verdict != "refuted"
        elif first * first <= MOST_DEVICES_AFTER:
            mesh = Sequence.of(primitive, first).mesh
            assert result.counterexample == map_sentence(mesh, wrong[first][result.name])
        else:
            assert result.verdict != "proved"
    assert (report.verdict == "refuted") == any(wrong.values())


@settings(max_examples=settings().max_examples // 4)
@given(st.one_of(nearly_right(), any_maps))
def test_the_search_agrees_with_the_program_and_the_emulator(maps: Maps) -> None:
    agrees_with_program_and_emulator(primitive_of(maps))


@settings(max_examples=settings().max_examples // 4)
@given(with_homes())
def test_so_does_the_search_for_wrong_homes(drawn: tuple[Maps, Maps]) -> None:
    agrees_with_program_and_emulator(primitive_of(*drawn))


def agrees_with_program_and_emulator(primitive: Primitive) -> None:
    for side in (1, 2, 3):
        right = not faults(primitive, side)
        assert (verify_side(primitive, (side,)).verdict == "proved") == right
        assert check(Sequence.of(primitive, side)).equal == right
