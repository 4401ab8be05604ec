"""The search against what is counted, proved and known."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations, product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from command import run
from profiles import IS_LONG, draws, thinned

from primepar.certify.primitive import certify_primitive
from primepar.partition import PRIMITIVES
from primepar.reference.check import check
from primepar.schedule import Linear, Movement, Primitive, Sequence
from primepar.schedule.ledger import sent_blocks
from primepar.schedule.lower_bound import starts_replicated, training_step
from primepar.schedule.lowering import lower
from primepar.schedule.primitive import Slices, Value
from primepar.schedule.tracing import maps_of
from primepar.search import boxes, rings
from primepar.search.affine import Affine, OtherShapeError, Triple, triple_of
from primepar.search.boxes import amounts, planes
from primepar.search.boxes import words as box_words
from primepar.search.covering import MAPS, covers, distinct, exchanged, shape_of
from primepar.search.homes import one_map, received, words
from primepar.search.measures import (
    SIZES,
    amount,
    beats,
    costs,
    formula_text,
    on_side,
    parts_sent,
    words_of,
)
from primepar.search.ranking import ranked
from primepar.search.run import (
    BoxClass,
    PlaneClass,
    box_classes,
    candidates,
    placed,
    plane_classes,
)
from primepar.search.symmetry import key
from primepar.search.written import python_text
from primepar.verify.primitive.proof import prove

Classes = dict[str, PlaneClass]
SHAPE = (32, 64, 96)


@pytest.fixture(scope="module")
def classes() -> Classes:
    return {entry.name: entry for entry in plane_classes()}


def test_a_map_covers_every_mesh_where_its_determinant_is_a_unit() -> None:
    sample = MAPS[:: len(MAPS) // 4000]
    determinants = np.round(np.linalg.det(sample)).astype(int)
    for side in (2, 3, 4, 5):
        places = np.array(list(product(range(side), repeat=3))).T
        points = sample @ places % side
        numbers = (points[:, 0] * side + points[:, 1]) * side + points[:, 2]
        covered = (np.sort(numbers, axis=1) == np.arange(side**3)).all(1)
        assert (covered == (np.gcd(determinants, side) == 1)).all()
    assert int(covers().sum()) == 39_036
    assert len(distinct()) == 555
    assert len({exchanged(shape) for shape in distinct()}) == 97
    assert shape_of(triple_of(PRIMITIVES["output-stays"]()).phases[0])[1] == (0, 1, 0)


def test_what_is_found_is_what_is_known_and_the_frontiers(classes: Classes) -> None:
    two = {name: kind() for name, kind in PRIMITIVES.items() if len(kind().axis_sides) == 2}
    known = {name: placed(kind, tuple(classes.values())) for name, kind in two.items()}
    assert {name: place.text for name, place in known.items() if place.near} == {
        "summa": "is HomesOOObIW",
        "output-stays": "is HomesOOO",
        "input-stays": "is HomesIII",
        "weight-stays": "is HomesWWW",
        "primepar": "in the space, 2 (s - 1) (MN + MK) + 2 s NK: HomesIWW, HomesWII send less",
    }
    homes: dict[tuple[str, ...], set[str]] = {}
    for entry in classes.values():
        if entry.triple.homes:
            homes.setdefault(entry.triple.keeps, set()).add(formula_text(entry.words))
    assert homes[()] == {
        "3 (s - 1) (MN + NK)",
        "3 (s - 1) MN + 2 (s - 1) MK",
        "3 (s - 1) NK + 2 (s - 1) MK",
        "(s - 1) (MN + MK) + 3 (s - 1) NK",
        "3 (s - 1) MN + (s - 1) (NK + MK)",
        "2 (s - 1) (MN + MK) + (s - 1) NK",
        "(s - 1) MN + 2 (s - 1) (NK + MK)",
    }
    assert homes["I",] == {
        "2 (s - 1) (MN + MK)",
        "2 (s - 1) MN + 3 (s - 1) NK",
        "2 (s - 1) (MN + NK) + (s - 1) MK",
        "(s - 1) (MN + NK) + 3 (s - 1) MK",
    }
    assert homes["W",] == {
        "2 (s - 1) (NK + MK)",
        "3 (s - 1) MN + 2 (s - 1) NK",
        "2 (s - 1) (MN + NK) + (s - 1) MK",
        "(s - 1) (MN + NK) + 3 (s - 1) MK",
    }
    assert homes["I", "W"] == {"2 (s - 1) (MN + NK)"}
    # MN : NK : MK as 6 : 4 : 1, with no more than I kept
    sent = {n: sum((4 * a + b) * size for (a, b), size in zip(c.words, (6, 4, 1), strict=True))
            for n, c in classes.items() if {*c.triple.keeps} <= {"I"}}  # fmt: skip
    best = sorted(sent, key=sent.__getitem__)
    assert (best[0], sent[best[0]], sent[best[1]]) == ("HomesWIW_KeepI", 3 * 13, 3 * 14)
    stay = [name for name in classes if name.startswith("Aligned")]
    assert len(stay) == 27
    assert len(classes) == 67
    assert sum(classes["AlignedOIW"].words[x][1] for x in range(3)) == -5  # PrimePar: -4


def test_words_are_those_of_the_programs(classes: Classes) -> None:
    for entry in thinned(classes.values(), 3):
        assert words_of(entry.primitive) == entry.words, entry.name
    some = classes["AlignedWIW"], classes["HomesOWW"]
    assert all(costs(c.primitive, 5, SHAPE).sent == amount(c.words, 5, SHAPE) for c in some)
    for triple in [*one_map()][::60]:
        sent = costs(Affine(triple), 3, (1, 10**3, 10**6)).sent * 81
        parts = zip(words(triple, 3), (10**3, 10**9, 10**6), strict=True)
        assert sent == sum(count * size for count, size in parts)


def test_one_that_stays_sends_no_word_and_two_of_each_phase_send_at_least_a_rotation() -> None:
    side = 5
    for triple in one_map():
        for tensor, home in zip(("I", "W", "O"), triple.homes, strict=True):
            rows = [triple.phases[0]["MNK".index(d)] for d in dict(I="MN", W="NK", O="MK")[tensor]]
            least = side**2 * (side - 1) * any(row[2] % 2 for row in rows)
            assert received(tuple(rows), home, side) >= least


@pytest.mark.parametrize("name", ["AlignedOIW", "HomesOOObW", "HomesOWO_KeepI"])
def test_a_class_is_proved_certified_and_emulated(classes: Classes, name: str) -> None:
    primitive = classes[name].primitive
    certificate = prove(primitive).certificate
    assert certificate is not None
    assert certify_primitive(certificate, primitive) > 0
    for side in (1, 2, 3):
        report = check(Sequence.of(primitive, side), Linear(6 * side, 2 * side, 4 * side))
        assert report.equal


def test_all_classes_are_right_on_emulated_devices(classes: Classes) -> None:
    for entry in thinned(classes.values(), 4):
        assert check(Sequence.of(entry.primitive, 3), Linear(3, 3, 3)).equal, entry.name


class Renamed(Primitive):
    """The stationary family with other names: slices backwards, devices sheared."""

    axes = ("i", "j")

    def forward(self, i: Value, j: Value, t: Value, s: Value) -> Slices:
        return dict(M=(s - 1 - i - j) % s, N=(i + 2 * j - t) % s, K=j)

    def home(self, tensor: str, i: Value, j: Value, s: Value) -> Slices:
        m, n = (s - 1 - i - j) % s, (i + 2 * j) % s
        return {"I": dict(M=m, N=n), "W": dict(N=n, K=j), "O": dict(M=m, K=j)}[tensor]


class Late(Renamed):
    """The same, whose tensors have other homes than the first step needs."""

    def home(self, tensor: str, i: Value, j: Value, s: Value) -> Slices:
        return super().home(tensor, i, (j + 1) % s if tensor == "I" else j, s)


def test_names_and_counting_make_no_other_class(classes: Classes) -> None:
    assert placed(Renamed(), tuple(classes.values())).text == "is HomesOOO"
    assert placed(Late(), tuple(classes.values())).text.startswith("in the space, ")
    keys = {key(entry.triple) for entry in classes.values()}
    assert len(keys) == len(classes)
    assert len({key(entry.triple, exchange=True) for entry in classes.values()}) == 45


def test_what_is_no_triple_is_outside_of_the_space(classes: Classes) -> None:
    outside = {
        "by-output": "1 axes of 1 sides",
        "tesseract": "3 axes of 2 sides",
        "summa-rectangular": "4 axes of 3 sides",
        "output-stays-both-ways": "virtual axis h",
    }
    for name, reason in outside.items():
        place = placed(PRIMITIVES[name](), tuple(classes.values()))
        assert place.text == f"outside of the space: {reason}"
    folded = type("Folded", (Renamed,), {"steps": lambda self, s: 2 * s - s % 2})
    with pytest.raises(OtherShapeError, match=r"2 \* s - s % 2 steps"):
        triple_of(folded())


@pytest.mark.parametrize("stays", ["output", "input", "weight"])
def test_rings_in_both_directions_use_both_in_every_step_with_hops(stays: str) -> None:
    sequence = Sequence.of(PRIMITIVES[f"{stays}-stays-both-ways"](), 3, 2)
    places, movement = sequence.coordinates, Movement(sequence)
    for phase in movement.phases.values():
        for hops in (phase.prologue, *phase.operands, *phase.partials):
            ends = ((places[hop.source], places[hop.target]) for hop in hops)
            ways = {tuple((y - x) % 3 for x, y in zip(*both, strict=True)) for both in ends}
            assert {tuple(-x % 3 for x in way) for way in ways} == ways
    assert any(phase.operands[0] for phase in movement.phases.values())


def test_a_triple_is_read_back_from_its_primitive(classes: Classes) -> None:
    for entry in classes.values():
        assert triple_of(entry.primitive) == entry.triple
    rows = ((1, 0, 0, 0, 0), (0, 2, 1, -1, 2), (-1, -1, 0, 0, 0))
    assert triple_of(Affine(Triple((rows, rows, rows)))).phases == (rows, rows, rows)


def test_the_file_of_classes_has_the_same_maps(classes: Classes, tmp_path: Path) -> None:
    from primepar.partition.primitive_file import load_primitive

    file = tmp_path / "found.py"
    file.write_text(python_text(classes.values()), encoding="utf-8")
    for name, entry in thinned(classes.items(), 6):
        assert triple_of(load_primitive(f"{file}:{name}")) == entry.triple
    boxes = thinned([*box_classes(1), *box_classes(3)], 29)
    file.write_text(python_text(boxes), encoding="utf-8")
    for box in boxes:
        same = load_primitive(f"{file}:{box.name}")
        assert str(maps_of(same)) == str(maps_of(box.primitive))
        assert same.keeps == box.primitive.keeps


def test_the_command_places_proves_and_refuses(tmp_path: Path) -> None:
    assert run("search", "output-stays") == (
        0,
        "output-stays: proved for every s >= 1 (axes r, c)\n  is HomesOOO\n",
        "",
    )
    file = tmp_path / "mine.py"
    file.write_text(
        "from primepar import Primitive\n\n\nclass Mine(Primitive):\n    axes = ('r', 'c')\n\n"
        "    def forward(self, r, c, t, s):\n        return dict(M=r, N=(r + t) % s, K=r)\n",
        encoding="utf-8",
    )
    code, out, _ = run("search", f"{file}:Mine", "--json")
    answer = json.loads(out)
    assert (code, answer["verdict"], answer["placed"]) == (1, "refuted", None)
    assert run("search", "--axes", "9")[2] == (
        "primepar: error: --axes: expected 1, 2 or 3, got 9: write --axes 3\n"
    )
    assert run("search", "-o", "found.json")[2] == (
        "primepar: error: --output: expected a name that ends with .py, got found.json\n"
    )
    assert run("search", "K2")[2] == (
        "primepar: error: K2: expected a primitive, got another target: write the name of one that "
        "`primepar list` prints, or file.py:Class\n"
    )


def test_beating_is_for_every_side_from_three() -> None:
    assert beats(((2, -2), (0, 0), (1, 0)), ((2, -2), (0, 0), (1, 1)))
    assert not beats(((1, 5), (0, 0), (0, 0)), ((2, 0), (0, 0), (0, 0)))


def test_the_page_has_the_tables_that_are_computed(classes: Classes) -> None:
    from render_search import PAGE, PICTURE, class_rows, picture, tables

    assert tables(tuple(classes.values())) in PAGE.read_text(encoding="utf-8")
    assert picture(class_rows(classes.values())) in PICTURE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def one_and_three() -> dict[str, BoxClass]:
    return {entry.name: entry for axes in (1, 3) for entry in box_classes(axes)}


def test_one_axis_and_three_find_what_is_known(one_and_three: dict[str, BoxClass]) -> None:
    known = {
        name: placed(kind(), box_classes(len(kind().axis_sides))).member_of
        for name, kind in PRIMITIVES.items()
        if len(kind().axis_sides) in (1, 3) and not kind.virtual
    }
    assert known == {
        "by-batch": "AlignedM",
        "by-sequence": "AlignedM",
        "by-input": "AlignedN",
        "by-output": "AlignedK",
        "sequence-column": "CutK",
        "sequence-row": "CutN",
        "summa-deep": "CutMNK_PanelsN",
        "summa-deep-kept": "CutMNK_PanelsN_KeepIW",
        "tesseract": "CutMKM_PanelsN_CopyW",
        "three-d": "CutMNK_KeepIW",
        "three-d-exchanged": "CutMNK_KeepIW",
        "three-d-regathered": "CutMNK",
        "grid-kept": "CutMNK_KeepIW",
        "grid-keeps-input": "CutMNK_KeepI",
        "grid-keeps-weight": "CutMNK_KeepW",
        "grid-regathered": "CutMNK",
    }
    assert [len(box_classes(axes)) for axes in (1, 3)] == [32, 123]
    assert len(one_and_three) == 155


def test_what_boxes_send_is_what_their_programs_send(one_and_three: dict[str, BoxClass]) -> None:
    for place, entry in enumerate(one_and_three.values()):
        one, few = len(entry.primitive.axis_sides) == 1, place % 48 == 0
        for side in (2, 3) if one or few else (2,) * (place % 8 == 0):
            assert parts_sent(entry.primitive, side) == amounts(entry.sent, side), entry.name


@pytest.mark.parametrize(
    "name",
    [
        "CutK_N_N",
        "CutM_RingN_KeepW",
        "CutMMK_MNK_MNK",
        "CutMKM_PanelsN_CopyW",
        "RingsIIW_CutM_KeepW",
    ],
)
def test_a_box_is_proved_certified_and_emulated(
    one_and_three: dict[str, BoxClass], name: str
) -> None:
    primitive = one_and_three[name].primitive
    certificate = prove(primitive).certificate
    assert certificate is not None
    assert certify_primitive(certificate, primitive) > 0
    assert check(on_side(primitive, 2)).equal


def test_no_map_in_steps_sends_less_than_a_cut() -> None:
    """On one axis, by counting: for any coefficients, and the best home of each tensor."""
    side = 5
    tensors = ("MN", "NK", "MK")
    cuts = [[min(box_words(home, cut, dims, side) for home in dims) for dims in tensors]
            for cut in "MNK"]  # fmt: skip
    equal = 0
    for layout, rows in product(combinations("MNK", 2), product((-1, 0, 1, 2), repeat=4)):
        (a, b), (c, d) = pairs = rows[:2], rows[2:]
        if abs(a * d - b * c) != 1:
            continue
        sent = []
        for dims in tensors:
            least = float(side)
            for home in dims:
                words = 0.0
                for device in range(side):
                    cells = {
                        tuple((x * device + y * t) % side if dim in dims else -1
                              for dim, (x, y) in zip(layout, pairs, strict=True))
                        for t in range(side)
                    }  # fmt: skip
                    size = side ** -sum(dim in dims for dim in layout)
                    for cell in cells:
                        at = dict(zip(layout, cell, strict=True)).get(home)
                        part = 1 / side if at is None else at == device
                        words += size * (1 - part)
                least = min(least, words)
            sent.append(least)
        better = [all(x >= y - 1e-9 for x, y in zip(sent, cut, strict=True)) for cut in cuts]
        assert any(better), (layout, rows)
        equal += any(np.allclose(sent, cut) for cut in cuts)
    assert equal > 0
    assert planes(1)[2:] == (63, 39)


class WeightRing(Primitive):
    """The ring of a tutorial, in the other direction."""

    axes = ("r",)

    def forward(self, r: Value, t: Value, s: Value) -> Slices:
        return dict(M=r, N=(r - t) % s)

    def home(self, tensor: str, r: Value, s: Value) -> Slices:
        return {"I": dict(M=r), "W": dict(N=r), "O": dict(M=r)}[tensor]


class OtherHome(WeightRing):
    """The same with W cut along K at home: more is sent."""

    def home(self, tensor: str, r: Value, s: Value) -> Slices:
        return {"I": dict(N=r), "W": dict(K=r), "O": dict(M=r)}[tensor]


def test_a_ring_of_a_user_is_placed_and_the_tables_of_boxes_are_on_the_page() -> None:
    from render_search import PAGE, box_table

    assert placed(WeightRing(), box_classes(1)).text == "is CutM_RingN"
    assert placed(OtherHome(), box_classes(1)).text == (
        "no class: AlignedM, CutM, CutM_KeepW, CutM_PanelsN, CutM_PanelsN_KeepW and 6 more "
        "send less"
    )
    page = PAGE.read_text(encoding="utf-8")
    for axes in (1, 3):
        known = {name: placed(kind(), box_classes(axes)) for name, kind in PRIMITIVES.items()
                 if len(kind().axis_sides) == axes and not kind.virtual}  # fmt: skip
        assert box_table(axes, known) in page


def test_megatrons_pair_follows_on_one_axis() -> None:
    names = ("AlignedK", "AlignedN", "CutK", "CutN")
    entries = [entry for entry in box_classes(1) if entry.name in names]
    then = {row.name: row.then for row in ranked(entries, 2, SHAPE, {})}
    assert "AlignedN" in then["AlignedK"]
    assert "CutN" in then["CutK"]


def test_random_triples_are_proved_where_they_are_right_on_small_meshes() -> None:
    from search_attack import attack, compared_keys

    counts = attack(2_000 if IS_LONG else 40, sample=12 if IS_LONG else 1)
    assert counts["right, proved"] > 0
    assert counts["wrong, refuted"] > 0
    assert not counts["right, refuted"] + counts["wrong, proved"]
    keys = compared_keys(100 if IS_LONG else 6)
    assert set(keys) == {"keys equal, programs equal", "keys differ, programs differ"}


def test_a_home_whose_first_digit_has_no_unit_is_proved() -> None:
    """The witness takes r + c = k first, and then 3 r + 2 c = n: without that, minutes of Z3."""
    rows = ((1, 0, 0, 0, 0), (0, 0, 1, 0, 0), (0, 1, 0, 0, 0))
    plain = ((1, 0, 0), (0, 1, 0))
    triple = Triple((rows,) * 3, (plain, ((-3, -2, 0), (-1, -1, 1)), plain))
    assert prove(Affine(triple)).certificate is not None


def test_the_ranking_has_the_bound_and_what_follows(classes: Classes) -> None:
    names = ("HomesOOO", "HomesIII", "AlignedOOO", "HomesOII")
    rows = {row.name: row for row in ranked([classes[name] for name in names], 4, SHAPE, {})}
    assert [row.sent for row in rows.values()] == sorted(row.sent for row in rows.values())
    assert all((row.over_bound or 0) >= 1 for row in rows.values())
    # Cannon's pair of the MLP: O stays in the first operator, I in the second.
    assert "HomesIII" in rows["HomesOOO"].then
    M, N, K = SHAPE
    assert {row.held - row.buffers for row in rows.values()} == {2 * (M * N + N * K + M * K) // 16}
    by_memory = ranked([classes[name] for name in names], 4, SHAPE, {}, "held")
    assert [row.held for row in by_memory] == sorted(row.held for row in rows.values())


@pytest.mark.parametrize(("axes", "sides"), [(1, (2, 8)), (2, (3, 8)), (3, (2, 4))])
def test_no_class_is_below_the_bound_on_random_shapes(axes: int, sides: tuple[int, ...]) -> None:
    every = [
        c for c in candidates(axes) if not starts_replicated(Movement(on_side(c.primitive, 2)))
    ]
    assert len(every) > len(candidates(axes)) / 2
    shapes = np.random.default_rng(axes).integers(1, 2**14, (draws(2000), 3)).tolist()
    for side in sides:
        parts = np.array(
            [[a * side + b for a, b in c.words] if isinstance(c, PlaneClass)
             else amounts(c.sent, side) if isinstance(c, BoxClass) else []
             for c in every], dtype=np.float64)  # fmt: skip
        for M, N, K in shapes:
            least = (parts @ (M * N, N * K, M * K)).min() / side**axes
            assert training_step(M, N, K, side**axes) <= least, (M, N, K, side)


class Mixed(Primitive):
    """O stays in forward and I after it, on layers that cut N: as in docs/search.md."""

    axes = {"r": "q", "c": "q", "e": "d"}

    def forward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c + t) % q), K=c)

    def backward(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=r, N=(e, (r + c) % q), K=(c + t) % q)

    def gradient(self, r: Value, c: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return self.backward(r, c, e, t, q, d)

    def home(self, tensor: str, r: Value, c: Value, e: Value, q: Value, d: Value) -> Slices:
        n = (e, (r + c) % q)
        return {"I": dict(M=r, N=n), "W": dict(N=n, K=c), "O": dict(M=(r, e), K=c)}[tensor]


def test_phases_that_differ_send_less_in_steps_than_any_triple_of_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 2 x 2 x 2 devices, with MN : NK : MK as 4 : 4 : 3: 28 parts for 30."""
    monkeypatch.setattr(boxes, "COMPARED", 2)
    cuts, sizes = boxes.fewest.__wrapped__(3, ()), (4, 4, 3)
    sent = [
        sum(x * size for x, size in zip(amounts(boxes.terms(cut), 2), sizes, strict=True))
        for cut in cuts
    ]
    ours = sum(x * size for x, size in zip(parts_sent(Mixed(), 2), sizes, strict=True))
    assert (ours, min(sent)) == (28, 30)
    assert prove(Mixed()).certificate is not None
    assert placed(Mixed(), box_classes(3)).text == "is RingsOII_CutN"


def test_rings_on_layers_send_less_with_one_copy_or_one_kept() -> None:
    names = [entry.name for entry in rings.fewest()]
    assert names == [
        f"Rings{stays}_Cut{cut}{kept}"
        for stays, kept in (("OII", ""), ("OWW", ""), ("WIW", "_KeepI"), ("IIW", "_KeepW"))
        for cut in "MNK"
    ]
    gains = []
    for keeps in ((), ("I",), ("W",)):
        kinds = (
            [boxes.terms(cuts) for cuts in boxes.fewest(3, keeps)],
            [rings.terms(entry) for entry in rings.fewest() if {*entry.keeps} <= {*keeps}],
        )
        cut, ring = (
            (np.array([amounts(sent, 8) for sent in kind], dtype=float) @ boxes.shapes()).min(0)
            for kind in kinds
        )
        gains.append(round(100 * float((1 - ring / cut).max()), 1))
    assert gains == [2.2, 1.3, 1.3]


def test_rings_send_what_their_programs_send_where_layers_are_more_than_sides() -> None:
    sides = {"q": 2, "d": 3}
    for entry in thinned(rings.fewest(), 3):
        sequence = Sequence.of(rings.RingsPrimitive(entry), *sides.values())
        blocks = sent_blocks(lower(sequence))
        for tensor, sent in rings.terms(entry).items():
            parts = prod(sequence.grid.get(dim, 1) for dim in SIZES[tensor])
            every = sum(n for name, n in blocks.items() if name.lstrip("d").startswith(tensor))
            formula = sum(
                term.times * (prod(sides[side] for side in term.up)
                              - Fraction(1, prod(sides[side] for side in term.parted)))
                for term in sent
            )  # fmt: skip
            assert Fraction(every, parts) == formula, (entry.name, tensor)
