"""Every picture is legible on light and on dark pages, and no text of it is clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec
import pytest
from matplotlib import get_data_path
from PIL import ImageFont
from plan_cases import small
from profiles import few

from benchmarks.bars import BarPanel, bars
from primepar.partition import parse_sequence
from primepar.pictures import svg
from primepar.pictures.counterexample import CounterexamplePanel, counterexample_svg
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import space_time
from primepar.pictures.timeline import timeline_svg
from primepar.plan.description import describe, plan_svg
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program, lower
from primepar.verify.program import verify_program

WRONG = Path(__file__).parents[1] / "wrong"
TAG = "{http://www.w3.org/2000/svg}"
LEAST = 4.5
"""Contrast that WCAG 2 asks of a text (level AA)."""
FONTS = Path(get_data_path()) / "fonts" / "ttf"


def of_sequence(text: str) -> str:
    sequence = parse_sequence(text)
    places = [dict(zip(sequence.axes, place, strict=True)) for place in sequence.coordinates]
    return grid_svg(space_time(lower(sequence), text, places, sequence.steps))


def of_wrong(name: str) -> tuple[Program, str]:
    program = msgspec.json.decode((WRONG / f"{name}.json").read_bytes(), type=Program)
    return program, f"{name}: {program.ranks} devices"


def of_program(name: str) -> str:
    return grid_svg(space_time(*of_wrong(name)))


def of_counterexamples(name: str) -> str:
    program, title = of_wrong(name)
    return counterexample_svg(title, [
        CounterexamplePanel(result.name, result.counterexample or "", result.details)
        for result in verify_program(program).properties
        if result.details is not None
    ])  # fmt: skip


def of_run() -> str:
    program = lower(parse_sequence("P2x2"))
    return timeline_svg(emulate(program, memories(program), parse_sequence("P2x2")).events)


STEMS = sorted(path.stem for path in WRONG.glob("*.json"))
PICTURES: dict[str, Callable[[], str]] = {
    **{name: partial(of_sequence, name)
       for name in ("P2x2", "S3x3", "K4", "M2,P2x2", "T2x2x2", "Ws3x3")},
    **{f"grid of {stem}": partial(of_program, stem) for stem in STEMS},
    **{stem: partial(of_counterexamples, stem) for stem in STEMS},
    "run": of_run,
    "plan": lambda: plan_svg(describe(small("primepar"))),
    "bars": lambda: bars([BarPanel("p", (("a", (1.0, 0.5)),))], ["paper", "planner"], 1, 1.5, "x"),
}  # fmt: skip


@cache
def drawn(name: str) -> str:
    return PICTURES[name]()


def colour_in(colour: str, dark: bool) -> str:
    return svg.DARK.get(colour, colour) if dark else colour


def over(colour: str, opacity: float, below: str) -> str:
    both = [(int(colour[i : i + 2], 16), int(below[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * new + (1 - opacity) * old):02x}" for new, old in both)


def contrasts(picture: str, dark: bool) -> Iterator[tuple[str, float]]:
    """Each text, with the contrast to all that is filled below it."""
    filled: list[Element] = []
    for element in ElementTree.fromstring(picture).iter():
        if element.tag == f"{TAG}rect" and element.get("fill", "none") != "none":
            filled.append(element)
        if element.tag != f"{TAG}text":
            continue
        below = colour_in(svg.PAPER, dark)
        x, y = float(element.get("x", 0)), float(element.get("y", 0)) - 3
        for rect in filled:
            left, top, wide, high = (
                float(rect.get(key, 0)) for key in ("x", "y", "width", "height")
            )
            if left - 1 <= x <= left + wide + 1 and top <= y <= top + high:
                fill = colour_in(rect.get("fill", ""), dark)
                below = over(fill, float(rect.get("fill-opacity", 1)), below)
        yield element.text or "", svg.contrast(colour_in(element.get("fill", ""), dark), below)


@few
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PICTURES)
def test_every_text_has_enough_contrast(name: str, dark: bool) -> None:
    texts = list(contrasts(drawn(name), dark))
    assert texts
    assert [text for text in texts if text[1] < LEAST] == []


@few
@pytest.mark.parametrize("name", PICTURES)
def test_no_text_is_clipped(name: str) -> None:
    """Measured in DejaVu, which is wider than what most readers have."""
    root = ElementTree.fromstring(drawn(name))
    left, _, width, height = map(float, root.get("viewBox", "").split())
    for text in root.iter(f"{TAG}text"):
        bold = "Bold" if text.get("font-weight") else ""
        face = "DejaVuSansMono" if "font-family" in text.attrib else "DejaVuSans"
        path = FONTS / f"{face}{f'-{bold}' if bold else ''}.ttf"
        font = ImageFont.truetype(str(path), 10 * int(text.get("font-size", 12)))
        wide = font.getlength(text.text or "") / 10
        part = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
        start = float(text.get("x", 0)) - part * wide
        assert (left <= start, start + wide <= left + width) == (True, True), text.text
        assert 0 < float(text.get("y", 0)) <= height, text.text


def test_the_contrast_is_that_of_wcag() -> None:
    assert svg.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert svg.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_a_text_without_contrast_is_seen() -> None:
    pale = svg.picture(100, 20, [svg.text("pale", 4, 12, fill="#cccccc")], "pale")
    assert [round(contrast, 1) for _, contrast in contrasts(pale, dark=False)] == [1.6]


def test_a_picture_is_widened_where_a_text_would_be_clipped() -> None:
    root = ElementTree.fromstring(svg.picture(100, 20, [svg.text("x" * 50, 4, 12)], "long"))
    assert float(root.get("width", 0)) > 300


def test_the_mesh_of_two_axes_is_drawn_with_its_devices() -> None:
    root = ElementTree.fromstring(drawn("P2x2"))
    texts = [text.text for text in root.iter(f"{TAG}text")]
    assert texts[-9:] == ["mesh of 4 devices", "c=0", "c=1", "r=0", "0", "1", "r=1", "2", "3"]
    assert "mesh of 4 devices" not in drawn("K4")
