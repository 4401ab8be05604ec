"""A plan in words and pictures, and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run
from conftest import Golden
from plan_cases import BLOOM, GPT2, NAMED, WIDE, changed, small

from primepar.api.target import resolve
from primepar.pictures.svg import RED
from primepar.plan import Plan, load_plan, preset_plan, save_plan
from primepar.plan.description import (
    MOST_CELLS,
    cut_text,
    describe,
    holders,
    picture,
    plan_svg,
    words,
)
from primepar.schedule import Layout

CONFIG = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 12, "n_positions": 8,
    "vocab_size": 97, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    save_plan(small("primepar", model=GPT2), tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


# Words


@pytest.mark.parametrize("name", ["megatron-sp", "primepar", "stationary"])
def test_a_plan_is_described_in_words_and_a_picture(golden: Golden, name: str) -> None:
    golden(f"plan-{name}", words(describe(preset_plan(name, GPT2, 4, batch=8))))


def test_equal_layers_are_printed_once() -> None:
    plan = small(model=GPT2)
    names = [row.name for row in describe(plan).rows]
    assert names[:3] == ["embedding", "blocks.0-1.norm1", "blocks.0-1.qkv"]
    assert len(names) == 14
    other = plan.sequences | {"blocks.1.qkv": "M4"}
    description = describe(Plan(model=GPT2, ranks=4, sequences=other))
    assert [row.name for row in description.rows][1::10] == [
        "blocks.0.norm1",
        "blocks.1.norm1",
        "norm",
    ]


@pytest.mark.parametrize(("name", "ranks"), NAMED)
def test_the_moved_elements_of_the_rows_are_the_sum_over_the_edges(name: str, ranks: int) -> None:
    description = describe(small(name, ranks))
    assert description.moved == sum(row.before + row.back for row in description.rows)


def test_moved_elements_are_those_of_the_planned_batch() -> None:
    smallest, planned = (describe(preset_plan("primepar", GPT2, 4, batch)) for batch in (None, 8))
    assert (smallest.tokens, planned.tokens) == (1 * 8, 8 * 8)
    (fc2,) = (row for row in planned.rows if row.name.endswith("fc2"))
    assert (fc2.before, fc2.back) == (64 * 192 // 2, 64 * 192 // 2)


@pytest.mark.parametrize(
    ("layout", "text", "lines"),
    [
        (Layout((1, 1), (((0, 0),),)), "whole", ["   0"]),
        (Layout((1, 1), (((0, 0),),) * 2), "whole on every device", ["   0,1"]),
        (Layout((2, 1), (((0, 0),), ((1, 0),), ((0, 0),))), "rows in 2", ["   0,2", "   1"]),
        (Layout((1, 2), (((0, 0),),) * 3 + (((0, 1),),)), "columns in 2", ["   0-2  3"]),
    ],
)
def test_a_picture_shows_the_devices_of_every_block(
    layout: Layout, text: str, lines: list[str]
) -> None:
    assert cut_text(layout) == text
    assert [line.rstrip() for line in picture("A", layout)] == [f"A  {text}", *lines]


def test_a_layout_of_many_blocks_is_not_drawn() -> None:
    many = MOST_CELLS + 1
    layout = Layout((many, 1), tuple(((row, 0),) for row in range(many)))
    assert picture("A", layout) == ["A  rows in 17"]
    assert holders(layout, 16, 0) == "16"


def test_a_narrow_terminal_gets_pictures_one_below_the_other() -> None:
    lines = words(describe(small("stationary")), width=30).splitlines()
    assert lines.count("A  rows in 2, columns in 2") == 1
    assert lines.count("B  rows in 2, columns in 2") == 1


def test_more_layouts_than_letters_have_names_of_their_own() -> None:
    description = describe(small())
    grids = range(2, 40)
    letters = {description.letter(Layout((grid, grid), (((0, 0),),))) for grid in grids}
    assert len(letters) == len(grids)
    assert "A1" in letters


# Pictures


@pytest.mark.parametrize(("name", "ranks"), [*NAMED, ("data", 24)])
def test_the_picture_of_a_plan_names_every_operator_and_every_device(name: str, ranks: int) -> None:
    root = ElementTree.fromstring(plan_svg(describe(small(name, ranks))))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {row.name for row in describe(small(name, ranks)).rows} <= set(texts)
    tiles = len(list(root.iter("{http://www.w3.org/2000/svg}rect")))
    assert bool(tiles) == (name != "data" or ranks <= MOST_CELLS)


def test_the_picture_has_moved_elements_only_where_some_move() -> None:
    def moved(name: str) -> int:
        root = ElementTree.fromstring(plan_svg(describe(small(name, model=BLOOM))))
        return sum(element.get("fill") == RED for element in root.iter())

    assert (moved("megatron"), moved("primepar"), moved("stationary")) == (0, 5, 1)


# The command line


def test_show_describes_a_plan_file(plan: str) -> None:
    done = run("show", plan)
    assert (done.code, done.err) == (0, "")
    assert done.out == words(describe(load_plan(Path(plan))))
    assert resolve(plan) == load_plan(Path(plan))


def test_show_as_json_has_every_layout(plan: str) -> None:
    report = json.loads(run("show", plan, "--json").out)
    assert report["layouts"]["B"] == {"grid": [2, 2],
                                     "held": [[[0, 0]], [[0, 1]], [[1, 1]], [[1, 0]]]}  # fmt: skip
    assert report["rows"][2] == {
        "name": "blocks.0-1.qkv", "sequence": "P2x2", "takes": "B", "leaves": "A", "gradient": "C",
        "before": 192, "back": 192,
    }  # fmt: skip


def test_show_makes_a_preset_for_a_model_and_writes_it(config: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    options = ("--model", config, "--devices", "8", "--batch", "4")
    done = run("show", "M2,stationary", *options, "-o", str(path))
    assert (done.code, done.out) == (0, f"wrote {path}\n")
    assert load_plan(path) == preset_plan("M2,stationary", GPT2, 8, 4)
    assert run("show", "M2,stationary", *options).out == run("show", str(path)).out


def test_a_method_that_is_a_primitive_too_is_a_plan_with_a_model(config: str) -> None:
    asked = run("show", "tesseract:2", "--model", config, "--devices", "8", "--json")
    assert json.loads(asked.out)["rows"][0]["sequence"] == "T2x2x2"
    assert run("show", "tesseract", "--side", "2,1").out.startswith("T2x2x1: 4 devices")


def test_show_writes_the_picture(plan: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    assert run("show", plan, "-o", str(path)).out == f"wrote {path}\n"
    assert path.read_text() == plan_svg(describe(load_plan(Path(plan))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("PLAN", "--side", "2"), "PLAN: expected no --side, as a plan has its own sequences, got "
         "--side 2: leave it out"),
        (("PLAN", "--phase", "forward"), "PLAN: expected no --phase, as a plan has its own "
         "sequences, got --phase forward: leave it out"),
        (("PLAN", "-o", "plan.png"), "--output: expected a name that ends with .json (the plan) "
         "or .svg (the picture), got plan.png"),
        (("PLAN", "--devices", "4"), "PLAN: expected the model and the devices of a preset, got no "
         "--model: write --model opt-6.7b"),
        (("megatron", "--model", "CONFIG"), "megatron: expected the model and the devices of a "
         "preset, got no --devices: write --devices 8"),
        (("megatron", "--model", "CONFIG", "--devices", "-4"), "megatron: expected 1 to 4096 "
         "devices, got -4"),
        (("summa", "--model", "CONFIG", "--devices", "6"), "summa: expected q x q devices, got 6: "
         "take 4 or 9"),
        (("PLAN", "--model", "CONFIG", "--devices", "4"), "expected a preset plan (megatron, "
         "megatron-sp, summa, tesseract, 3d, primepar, stationary, stationary-both-ways, data), "
         "or M<d>, before one as "
         "in M2,megatron, got 'PLAN'"),
        (("megatron",), "megatron: expected a model and a number of devices for a preset plan, got "
         "neither: write megatron --model config.json --devices 4, to show it or to verify it"),
        (("M2,summa",), "M2,summa: expected a model and a number of devices for a preset plan, got "
         "neither: write M2,summa --model config.json --devices 4, to show it or to verify it"),
    ],
)  # fmt: skip
def test_show_refuses_in_one_line_and_writes_nothing(
    plan: str, config: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    places = {"PLAN": plan, "CONFIG": config}
    done = run("show", *(places.get(word, word) for word in arguments))
    shown = message.replace("PLAN", plan).replace("CONFIG", config)
    assert (done.code, done.out, done.err) == (2, "", f"primepar: error: {shown}\n")
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_file_that_is_wrong_is_refused_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    fields = {
        "format": "primepar-plan",
        "version": 1,
        "model": json.loads(json.dumps({name: getattr(WIDE, name) for name in vars(WIDE)})),
        "ranks": 4,
        "sequences": changed(small(), qkv="K2"),
    }
    path.write_text(json.dumps(fields))
    done = run("show", str(path))
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f'primepar: error: {path}: $.sequences["blocks.0.qkv"]: expected a sequence for the 4 '
        "devices of $.ranks, got 2 in 'K2': their lengths multiply to the number of devices\n"
    )
