"""Every method has a page of its own words, equations, pictures and counts; a wrong one none."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from script_module import load

from primepar.partition import METHODS, PRIMITIVES, parse_sequence
from primepar.partition.summa import Summa
from primepar.pictures.space_time import space_time
from primepar.schedule import Linear, Sequence, lower
from primepar.schedule.ledger import Move, moves, moves_text
from primepar.schedule.primitive import ANY, Primitive, Slices, Value
from primepar.schedule.program import AllToAll, Group, Program, Recv, Send
from primepar.schedule.tracing import home_equations

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with small shapes and meshes."""
    module = load(ROOT / "docs" / "render_methods.py")
    counted = {1: ((2,),), 2: ((2, 1), (2, 2)), 3: ((1, 1, 2), (1, 2, 1))}
    monkeypatch.setattr(module, "COUNTED", counted)
    monkeypatch.setattr(module, "SHAPE", Linear(M=8, N=4, K=12))
    monkeypatch.setattr(module, "LARGE", Linear(M=8, N=8, K=8))
    meshes = {
        ("d",): (4,),
        ("r", "c"): (2,),
        ("r", "c", "e"): (2, 1),
        ("r", "a", "c", "b"): (1, 1, 4),
    }
    monkeypatch.setattr(module, "OVERVIEW", {4: meshes})
    return module


def test_a_page_has_words_equations_pictures_and_counts_next_to_the_formula(
    renderer: ModuleType, tmp_path: Path
) -> None:
    page = renderer.page("primepar.partition.summa", ["summa"], tmp_path)
    for number in (1, 2):
        ElementTree.parse(tmp_path / f"summa-{number}.svg")
    heading = (
        "SUMMA: two-dimensional tensor parallelism on a q x q mesh, or on one of q u x q v, in q "
        "steps."
    )
    assert page.startswith(
        f"---\ndescription: >-\n  {heading}\n---\n\n# SUMMA\n\n{heading}\n\n"
        "Source: [van de Geijn and Watts, 1997](https://doi.org/10.1002/"
    )
    assert "(https://arxiv.org/abs/2104.05343)" in page
    assert (
        r"Sent per device: q x q: \(\frac{3 \left(q - 1\right) \left(MN + NK\right)}{p}\) "
        r"elements, \(p = q^{2}\)"
    ) in page
    assert page.endswith(
        "## summa\n\nM=r, N=t, K=c in every phase; homes: I, W and O [r, c].\n\n"
        "$$\n\\begin{aligned}\n\\text{in each phase} &\\quad M=r,\\; N=t,\\; K=c \\\\\n"
        "\\text{home} &\\quad I[r,\\; c],\\quad W[r,\\; c],\\quad O[r,\\; c]\n"
        "\\end{aligned}\n$$\n\n"
        "![S2x2: forward](summa-1.svg){ .schedule }\n\n"
        "![S2x2: backward and gradient](summa-2.svg){ .schedule }\n\n"
        "A training step under `S3x3` moves, counted on one device: "
        "broadcast I 6, W 6; reduce dI 3, dW 3.\n\n"
        "Elements on each device, counted for `M=8`, `N=4`, `K=12`:\n\n"
        "| mesh | devices | sent | sent, by the formula | `I` and `W` resident | most at a time "
        "| sent over the [lower bound](../lower-bounds.md) |\n|---|--:|--:|--:|--:|--:|--:|\n"
        "| `S2x2` | 4 | 60 | 60 | 20 | 108 | 1.64 |\n\n"
        "`primepar verify summa`: proved for every s >= 1 (axes r, c).\n\n"
        "Write a part of it yourself: `primepar exercise 21`.\n\n"
        "This page is made from its source:\n\n"
        '??? quote "primepar/partition/summa.py"\n\n'
        '    ```python\n    --8<-- "primepar/partition/summa.py"\n    ```\n'
    )


def test_a_rectangular_mesh_has_its_equations_and_counts(
    renderer: ModuleType, tmp_path: Path
) -> None:
    parts = list(renderer.section("summa-rectangular", tmp_path))
    for number in (1, 2):
        ElementTree.parse(tmp_path / f"summa-rectangular-{number}.svg")
    assert parts[2:] == [
        "$$\n\\begin{aligned}\n"
        "\\text{in each phase} &\\quad M=(r,\\; a),\\; N=t,\\; K=(c,\\; b) \\\\\n"
        "\\text{home} &\\quad I[(r,\\; a),\\; (c,\\; \\ast ,\\; b)],"
        "\\quad W[(r,\\; a),\\; (c,\\; b)],"
        "\\quad O[(r,\\; a),\\; (c,\\; b)]\n\\end{aligned}\n$$",
        "![S2x4: forward](summa-rectangular-1.svg){ .schedule }",
        "![S2x4: backward and gradient](summa-rectangular-2.svg){ .schedule }",
        "A training step under `S3x6` moves, counted on one device: "
        "broadcast I 12, W 12; reduce dI 6, dW 6.",
        "Elements on each device, counted for `M=8`, `N=4`, `K=12`:\n\n"
        "| mesh | devices | sent | sent, by the formula | `I` and `W` resident | most at a time "
        "| sent over the [lower bound](../lower-bounds.md) |\n|---|--:|--:|--:|--:|--:|--:|\n"
        "| `S1x2` | 2 | 48 | 48 | 40 | 192 | 1.57 |\n"
        "| `S2x1` | 2 | 72 | 72 | 40 | 200 | 2.35 |",
        "`primepar verify summa-rectangular`: proved for every q, u, v >= 1 "
        "(axes r, c: q; a: u; b: v).",
    ]


def test_every_primitive_is_on_one_page_and_every_page_is_in_the_navigation(
    renderer: ModuleType,
) -> None:
    assert [name for _, names in renderer.methods() for name in names] == [*PRIMITIVES, *METHODS]
    pages = {f"methods/{renderer.page_name(module)}" for module, _ in renderer.methods()}
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert set(re.findall(r"methods/\w+\.md", navigation)) == {*pages, "methods/index.md"}


def test_the_overview_has_a_line_for_every_primitive(renderer: ModuleType) -> None:
    lines = renderer.overview().splitlines()
    rows = [line for line in lines if line.startswith("| [")]
    names = [line.split(" | ")[1] for line in rows[: len(PRIMITIVES)]]
    assert names == [f"`{name}`" for name in PRIMITIVES]
    assert [row[3 : row.index("]")] for row in rows[len(PRIMITIVES) :]] == list(METHODS)
    assert rows[6] == "| [SUMMA](summa.md) | `summa` | `M=r, N=t, K=c` | 96 | 128 |"
    assert rows[7].endswith(" | `summa-rectangular` | `M=(r, a), N=t, K=(c, b)` | 144 | 144 |")
    assert rows[11].endswith(" | `three-d` | `M=i, N=l, K=j` |  |  |")


class Cheaper(Summa):
    """SUMMA with a formula that gives too little."""

    def sent(self, M: int, N: int, K: int, s: int) -> int:
        return 1


def test_a_wrong_formula_has_no_page(
    renderer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRIMITIVES, "summa", Cheaper)
    with pytest.raises(SystemExit) as error:
        renderer.page("primepar.partition.summa", ["summa"], tmp_path)
    assert str(error.value) == ("summa: expected 1 elements to leave each device, got 60")


def test_a_primitive_without_a_formula_has_no_page(renderer: ModuleType) -> None:
    with pytest.raises(SystemExit) as error:
        renderer.count("pair", parse_sequence("K,S2x2"), Linear(M=8, N=8, K=8))
    assert str(error.value) == "pair: expected a formula of what is sent, got none"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("K3", "all-reduce dI 1"),
        ("Ks3", "all-gather I 2; reduce-scatter dI 1"),
        ("S3x3", "broadcast I 6, W 6; reduce dI 3, dW 3"),
        ("P3x3", "shift I 4, W 5, dO 4; travelling sum dW 1"),
        ("Ws3x3", "shift I 4, dO 2; travelling sum O 2, dI 2"),
        ("K1", "nothing"),
    ],
)
def test_a_program_reports_what_it_moves(text: str, expected: str) -> None:
    assert moves_text(moves(lower(parse_sequence(text)))) == expected


def test_what_is_gathered_before_the_first_product_is_drawn_before_it() -> None:
    for text in ("Ks2", "Ks3"):
        sequence = parse_sequence(text)
        grid = space_time(lower(sequence, phases=("forward",)), text, steps=sequence.steps)
        first, second = (column[0] for column in grid.cells)
        assert first is not None
        assert second is not None
        assert (bool(first.messages or first.collectives), len(first.products)) == (True, 0)
        assert (second.messages, second.collectives) == ((), ())


def test_messages_count_where_they_are_sent_and_in_groups_too() -> None:
    exchange = AllToAll((0, 1), blocks=("W[0,0]", "W[0,1]"), into=("W[0,0]", "W[1,0]"))
    one = (Group((Send(1, "I[0,0]"), Recv(1, "I[0,1]"))), exchange)
    two = (Group((Recv(0, "I[0,0]"), Send(0, "I[0,1]"))), Send(0, "dW[0,0]"), exchange)
    ways = moves(Program("primepar-program", 1, 2, (one, two)))
    assert ways == (
        Move("shift", "I", 1),
        Move("all-to-all", "W", 1),
        Move("travelling sum", "dW", 1),
    )


class Folded(Primitive):
    axes = {"r": "q", "e": "d"}

    def forward(self, r: Value, e: Value, t: Value, q: Value, d: Value) -> Slices:
        return dict(M=(e, r), N=t)

    def home(self, tensor: str, r: Value, e: Value, q: Value, d: Value) -> Slices:
        homes = {"I": dict(B=r, M=(e, r)), "W": dict(K=(r + e) % q), "O": dict(M=(ANY, r))}
        return homes[tensor]


def test_homes_print_with_whole_dims_and_open_digits() -> None:
    assert home_equations(Folded()) == {
        "I": "I[r, (e, r), :]", "W": "W[:, (r + e) % q]", "O": "O[(*, r), :]"
    }  # fmt: skip
    assert home_equations(PRIMITIVES["primepar"]()) == {}


def test_what_is_resident_is_counted_with_its_copies(renderer: ModuleType) -> None:
    column = renderer.count("by-output", Sequence.of(PRIMITIVES["by-output"](), 4),
                            Linear(M=8, N=8, K=8))  # fmt: skip
    assert (column.sent, column.resident) == (96.0, 8 * 8 + 8 * 8 / 4)
