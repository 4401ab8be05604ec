"""Counterexamples as SVG: valid XML that names the ranks, instructions and blocks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run

from primepar.pictures.counterexample_svg import CounterexamplePanel, counterexample_svg
from primepar.pictures.svg import RED
from primepar.schedule import load_program
from primepar.verify.program import verify_program

FOLDER = Path(__file__).parent / "wrong"
SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def drawn(target: str, tmp_path: Path) -> str:
    path = tmp_path / "wrong.svg"
    done = run("verify", f"{FOLDER}/{target}", "-o", str(path))
    assert (done.code, done.err) == (1, f"wrote {path}\n")
    return path.read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_picture_of_a_program_names_its_ranks_and_instructions(path: Path) -> None:
    report = verify_program(load_program(path))
    panels = [
        CounterexamplePanel(result.name, result.counterexample or "", result.details)
        for result in report.properties
        if result.details is not None
    ]
    words = texts(counterexample_svg(path.stem, panels))
    for panel in panels:
        assert f"{panel.property}: {panel.example.kind}" in words
        for event in panel.example.events:
            named = event.text if event.index is None else f"{event.index} {event.text}"
            assert named in words
            assert f"rank {event.rank}" in words


def test_a_cycle_has_an_arrow_for_each_wait(tmp_path: Path) -> None:
    picture = drawn("swapped-order-deadlock.json", tmp_path)
    for waiting, awaited in ((0, 1), (1, 3), (3, 2), (2, 0)):
        assert f"<title>rank {waiting} waits for rank {awaited}</title>" in picture


def test_a_wrong_block_is_drawn_with_its_way(tmp_path: Path) -> None:
    picture = drawn("wrong-block-sent.json", tmp_path)
    assert picture.count("<title>moves to</title>") == 3
    assert {"rank 0", "rank 1", "initial W[0,1]", "needs the data of I[0,1]"} <= {*texts(picture)}


def test_the_smallest_mesh_of_a_primitive_has_its_devices_marked(tmp_path: Path) -> None:
    words = texts(drawn("twins.py:Twins", tmp_path))
    assert "devices at s=2" in words
    assert "device 0 (r=0, c=0) at t=0" in words
    assert "device 1 (r=0, c=1) at t=0" in words
    assert "needs I[0,0], has I[0,1]" in words
    assert "forward, M=0: times computed" in words


def test_what_is_wrong_is_red(tmp_path: Path) -> None:
    root = ElementTree.fromstring(drawn("duplicated-product.json", tmp_path))
    red = [element.text for element in root.iter(f"{SVG}text") if element.get("fill") == RED]
    assert red[:2] == ["coverage: done-twice", "2"]


def test_nothing_is_drawn_where_nothing_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "none.svg"
    done = run("verify", "by-output", "--side", "2", "-o", str(path))
    assert (done.code, done.err) == (0, f"nothing is refuted: {path} is not written\n")
    assert not path.exists()


def test_another_ending_is_refused() -> None:
    done = run("verify", "by-output", "-o", "picture.png")
    assert (done.code, done.err) == (
        2,
        "primepar: error: --output: expected a name that ends with .svg (the picture), "
        "got picture.png\n",
    )
