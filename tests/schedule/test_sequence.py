"""Sequences: Algorithm 1, its nested time index, device order, and what is refused."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from profiles import IS_LONG

from primepar.errors import PrimitiveError, SequenceError, ShapeError
from primepar.partition import PRIMITIVES, PrimePar, parse_sequence
from primepar.schedule import Element, Linear, Movement, Primitive, Sequence
from primepar.schedule.expression import evaluate, parse
from primepar.schedule.operators import PHASES
from primepar.schedule.primitive import Slices, Value, where
from primepar.schedule.sequence import device_order
from primepar.verify import verify_primitive
from primepar.verify.primitive.smallest_mesh import FAULTS


def covered(sequence: Sequence) -> dict[str, list[tuple[int, ...]]]:
    """Phase -> every sub-operator that some device does at some step, with repeats."""
    return {
        phase: [
            index
            for rank in range(sequence.ranks)
            for step in range(sequence.steps)
            for index in product(*sequence.slices(phase, rank, step).values())
        ]
        for phase in PHASES
    }


@pytest.mark.parametrize(
    "text",
    ["", "B", "M", "N3", "K", "P1x1", "P2x2", "P3x3", "P4x4", "P5x5", "K,P2x2", "N,P2x2",
     "B,K,P3x3", "P2x2,N", "B,N,N", "B,K,K", "P2x2,P2x2", "P2x2,P3x3", "K,P2x2,M,P2x2"],
)  # fmt: skip
def test_every_sub_operator_is_covered_exactly_once(text: str) -> None:
    sequence = parse_sequence(text)
    everything = sorted(product(*(range(slices) for slices in sequence.grid.values())))
    for phase, done in covered(sequence).items():
        assert sorted(done) == everything, phase


def published_algorithm_1(bits: tuple[int, ...], t: int) -> tuple[int, int, int]:
    """Forward indices of {P2x2, P2x2} by Algorithm 1 as printed: one `t` for both primitives."""
    m = n = k = 0
    for r, c in (bits[:2], bits[2:]):
        m, n, k = 2 * m + r, 2 * n + (r + c + t) % 2, 2 * k + c
    return m, n, k


def test_the_published_single_time_index_covers_32_of_64_sub_operators() -> None:
    done = {published_algorithm_1(bits, t) for bits in product((0, 1), repeat=4) for t in range(2)}
    assert len(done) == 32
    assert len(set(covered(parse_sequence("P2x2,P2x2"))["forward"])) == 64


def test_bits_of_r_and_c_are_interleaved() -> None:
    def paper(rank: int) -> tuple[int, int]:
        d1, d2, d3, d4 = (rank >> 3) & 1, (rank >> 2) & 1, (rank >> 1) & 1, rank & 1
        return 2 * d1 + d3, 2 * d2 + d4

    assert device_order((4, 4)) == [paper(rank) for rank in range(16)]


def test_other_sides_are_row_major() -> None:
    assert device_order((3, 3))[:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert device_order((2, 4))[:5] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert device_order(()) == [()]


def test_the_first_primitive_takes_the_leading_digit_of_the_rank() -> None:
    sequence = parse_sequence("K,P2x2")
    assert [point[0] for point in sequence.coordinates] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sequence.place(6) == "device 6 (d=1, r=1, c=0)"
    assert parse_sequence("P2x2,P2x2").axes == ("r1", "c1", "r2", "c2")


def test_slices_of_the_paper_s_two_by_two_example() -> None:
    sequence = parse_sequence("P2x2")
    assert sequence.slices("forward", 3, 1) == {"M": (1,), "N": (1,), "K": (1,)}
    assert sequence.slices("gradient", 1, 1) == {"M": (1,), "N": (1,), "K": (1,)}
    assert sequence.grid == {"M": 2, "N": 2, "K": 2}
    assert parse_sequence("B,N").grid == {"B": 2, "M": 1, "N": 2, "K": 1}


def test_sequences_are_spelt_as_they_are_read() -> None:
    for text in ("K2,P2x2", "B4,M2,N3", "P3x3", "S2x3,S2x2,S4x6", "S1x2x1x2", "S2x1x2x1"):
        assert str(parse_sequence(text)) == text
    assert str(parse_sequence("K")) == "K2"


EXAMPLES = (
    "B, M, N, K, Ks, Ns, S2x2, S2x3, Sd2x2x2, Sk2x2x2, T2x2x2, C2x2x2, D2x2x2, Cr2x2x2, "
    "G2x2x2, Gi2x2x2, Gw2x2x2, Gr2x2x2, P2x2, Os2x2, Is2x2, Ws2x2, "
    "Ob2x2x2, Ib2x2x2, Wb2x2x2"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X", f"sequence 'X': expected primitives like {EXAMPLES}, got 'X'"),
        ("K,,N", f"sequence 'K,,N': expected primitives like {EXAMPLES}, got ''"),
        ("P", "sequence 'P': expected 2 lengths after P, equal along r and c, like P2x2, got 'P'"),
        ("P2x3", "sequence 'P2x3': expected 2 lengths after P, equal along r and c, like P2x2, "
         "got 'P2x3'"),
        ("K2x2", "sequence 'K2x2': expected 1 length after K, like K2, got 'K2x2'"),
        ("T2x3x2", "sequence 'T2x3x2': expected 3 lengths after T, equal along r and c, like "
         "T2x2x2, got 'T2x3x2'"),
        ("C2x2x3", "sequence 'C2x2x3': expected 3 lengths after C, equal along i, j and l, like "
         "C2x2x2, got 'C2x2x3'"),
        ("S2", "sequence 'S2': expected 2 lengths after S, like S2x3, got 'S2': write S2x2"),
        ("S0x2", "SummaRectangular: expected one positive length per side (q, u, v), got "
         "(2, 0, 1)"),
        ("K0", "ByOutput: expected one positive length per side (s), got (0,)"),
    ],
)  # fmt: skip
def test_a_misspelt_sequence_is_refused(text: str, message: str) -> None:
    with pytest.raises(SequenceError) as error:
        parse_sequence(text)
    assert str(error.value) == message


class Depth(Primitive):
    """Two-digit slices: M is cut by e, then by r; a phase that leaves r open works on all of it."""

    axes = {"e": "d", "r": "q"}

    def steps(self, d: int, q: int) -> int:
        return 1

    def forward(self, e: int, r: int, t: int, d: int, q: int) -> dict[str, object]:
        return dict(M=(e, r))

    def backward(self, e: int, r: int, t: int, d: int, q: int) -> dict[str, object]:
        return dict(M=e, K=r)


def test_a_shorter_index_is_the_whole_of_what_it_leaves_open() -> None:
    sequence = Sequence.of(Depth(), 2, 3)
    assert sequence.ranks == 6
    assert sequence.grid == {"M": 6, "N": 1, "K": 3}
    assert sequence.slices("forward", 4, 0) == {"M": (4,), "N": (0,), "K": (0, 1, 2)}
    assert sequence.slices("backward", 4, 0) == {"M": (3, 4, 5), "N": (0,), "K": (1,)}


class Negative(Primitive):
    """Forgets to wrap."""

    axes = ("r",)

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r - t)


class Raises(Primitive):
    """Divides by zero."""

    axes = ("r",)

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r // 0)


class UnknownDim(Primitive):
    """Names a dim that the operator has not."""

    axes = ("r",)

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(H=r)


class NoDict(Primitive):
    """Returns a bare index."""

    axes = ("r",)

    def forward(self, r: int, t: int, s: int) -> int:  # type: ignore[override]
        return r


class TwoDims(Primitive):
    """Two dims of one phase depend on what a device has several of."""

    axes = {"r": "s", "h": "b"}
    virtual = ("h",)

    def forward(self, r: int, h: int, t: int, s: int, b: int) -> dict[str, object]:
        return dict(M=r, N=(t, h), K=h)


class OtherAxis(TwoDims):
    """Its virtual axis is none of its axes."""

    virtual = ("k",)


class NoSteps(Primitive):
    """Has no step at all."""

    axes = ("r",)

    def steps(self, s: int) -> int:
        return 0

    def forward(self, r: int, t: int, s: int) -> dict[str, int]:
        return dict(M=r)


@pytest.mark.parametrize(
    ("primitive", "message"),
    [
        (
            Negative(),
            "Negative.forward: expected a slice index of M that is 0 or more, got -1 at r=0, t=1, "
            "sides (2,): wrap it with % of the side",
        ),
        (
            Raises(),
            "Raises.forward: expected % and // by 1 or more, got 0: use the length of a side, "
            "sides (2,)",
        ),
        (
            UnknownDim(),
            "UnknownDim.forward: expected dims out of B, M, N, K, got 'H': leave out a dim that is "
            "not split",
        ),
        (
            NoDict(),
            "NoDict.forward: expected dict(M=..., N=..., K=...), got Expression: return the slice "
            "index of each dim that the map splits",
        ),
        (
            TwoDims(),
            "TwoDims.forward: expected the virtual axis h in one dim, got it in N and K: a device "
            "works on each slice of one dim with each of the others",
        ),
        (
            OtherAxis(),
            "OtherAxis.virtual: expected some of the axes r, h, got 'k': a tuple, like "
            'virtual = ("h",)',
        ),
        (NoSteps(), "NoSteps.steps: expected a positive integer, got 0"),
    ],
)
def test_a_map_that_is_no_map_of_slices_is_refused(primitive: Primitive, message: str) -> None:
    with pytest.raises(PrimitiveError) as error:
        _ = Sequence.of(primitive, *[2] * len(primitive.side_names)).grid
    assert str(error.value) == message


@pytest.mark.parametrize("label", ["Ob", "Ib", "Wb"])
def test_places_of_a_virtual_axis_share_a_device_and_go_round_in_opposite_directions(
    label: str,
) -> None:
    sequence = parse_sequence(f"{label}4x4x2")
    assert (sequence.ranks, sequence.axes, sequence.steps) == (16, ("r", "c"), 4)
    cells = product(*(range(count) for count in sequence.grid.values()))
    assert all(sorted(some) == sorted(set(some)) for some in covered(sequence).values())
    assert set(covered(sequence)["forward"]) == set(cells)
    moved = Movement(sequence).moved("forward")
    ways = {
        tuple(
            (b - a) % 4 for a, b in zip(*map(sequence.coordinates.__getitem__, ends), strict=True)
        )
        for hops in (*moved.operands, *moved.partials)
        for hop in hops
        for ends in [(hop.source, hop.target)]
    }
    assert ways == {tuple(-x % 4 for x in way) for way in ways}
    assert all(sum(x in (1, 3) for x in way) == 1 == sum(map(bool, way)) for way in ways), ways


def test_a_ring_of_two_directions_is_proved_where_every_small_mesh_is_right() -> None:
    """Verdicts for every side against what is wrong on every mesh up to 3 x 3, in three parts."""
    verdicts = Counter[str]()
    back = ("r + c - t", "r + c + t", "r - c - t", "r + c - 2 * t", "r + c - t + 1", "c - t")
    short = [("r + c - t", True), ("r - c - t", True), ("r + c - 2 * t", True), ("c - t", True),
             ("c - t", False)]  # fmt: skip
    for text, has_home in product(back, (True, False)) if IS_LONG else short:
        ring = ring_of(text, has_home)
        meshes = [Movement(Sequence.of(ring, s, b)) for s, b in product((1, 2, 3), (1, 2, 3))]
        wrong = {name for mesh in meshes for name, search in FAULTS.items() if [*search(mesh)]}
        report = verify_primitive(ring)
        verdicts[report.verdict] += 1
        assert report.verdict == ("refuted" if wrong else "proved"), (text, has_home, wrong)
    assert min(verdicts["proved"], verdicts["refuted"]) > 1, verdicts


def ring_of(back: str, has_home: bool) -> Primitive:
    """`OutputStays` in parts, of which all but the first go round by the expression `back`."""

    def at(r: Value, c: Value, h: Value, t: Value, s: Value) -> Value:
        known = {"r": r, "c": c, "t": t}
        return where(h == 0, r + c + t, evaluate(parse(back), known)) % s, h

    class Ring(Primitive):
        axes = {"r": "s", "c": "s", "h": "b"}
        virtual = ("h",)

        def forward(self, r: Value, c: Value, h: Value, t: Value, s: Value, b: Value) -> Slices:
            return dict(M=r, N=at(r, c, h, t, s), K=c)

    def home(
        self: Primitive, tensor: str, r: Value, c: Value, h: Value, s: Value, b: Value
    ) -> Slices:
        n = at(r, c, h, 0, s)
        return {"I": dict(M=r, N=n), "W": dict(N=n, K=c), "O": dict(M=r, K=c)}[tensor]

    kind: type[Primitive] = type("Ring", (Ring,), {"home": home}) if has_home else Ring
    return kind()


def test_a_primitive_takes_one_length_per_side() -> None:
    with pytest.raises(SequenceError) as error:
        Element(PrimePar(), (2, 3))
    expected = "PrimePar: expected one positive length per side (s), got (2, 3)"
    assert str(error.value) == expected


def test_a_shape_that_the_grid_does_not_divide_is_refused_with_how_to_pad() -> None:
    with pytest.raises(ShapeError) as error:
        Linear(M=8, N=7, K=8).check_divides(parse_sequence("P2x2").grid)
    assert str(error.value) == (
        "dim N: expected a positive multiple of its 2 slices, got 7: pad N with zeros to 8"
    )
    with pytest.raises(ShapeError) as error:
        Linear(B=2, M=8, N=8, K=8).check_divides(parse_sequence("P2x2").grid)
    assert str(error.value) == (
        "dim B: expected 1, as this sequence does not split B, got 2: merge B into M, M=16"
    )


def test_every_registered_primitive_has_a_spelling_and_a_docstring_of_its_own() -> None:
    examples = [primitive().example for primitive in PRIMITIVES.values()]
    assert len(set(examples)) == len(examples)
    assert all(primitive.__doc__ for primitive in PRIMITIVES.values())
