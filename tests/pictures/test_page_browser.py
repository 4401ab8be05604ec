"""The page that moves, in a real headless Chromium; skipped, with the reason, where there is none.

Seconds are printed (`pytest -s`) and not asserted. With AXE=axe.min.js of the npm package axe-core
the page is searched for barriers too.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from script_module import load

from primepar.api import page_data
from primepar.partition import METHODS, PRIMITIVES
from primepar.pictures.page_html import page_html
from primepar.preflight.cases import CASES
from primepar.verify.program import judgement

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
PROVER = Path(__file__).resolve().parents[2] / "docs" / "prover"
PUZZLES = load(PROVER.parent / "puzzles.py")
WANTED = (
    "07_walk", "08_ring", "receives-deferred", "scaled-before-the-wait", "step-without-tokens"
)  # fmt: skip
"""Puzzles of the page in this test; test_page_maps.py has them all."""
WRONG = "M=r, N=(r + c) % s, K=c"
SENTENCE = (
    "coverage is refuted: s=2 (2x2 devices): forward sub-operator (M=0, N=0, K=0): expected one "
    "device to compute it once, got device 0 (r=0, c=0) at t=0 and device 0 (r=0, c=0) at t=1: "
    "give one of them another"
)
MAPS = ("primepar", "summa", "grid-kept")
"""Of the library grid-kept has most meshes to be checked at a keystroke."""
WIDTHS = (390, 820, 1400)


class Quiet(SimpleHTTPRequestHandler):
    """A server that prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of two maps and two methods."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_data, "LONGEST_SIDE", 2)
        maps = [page_data.map_data(name, PRIMITIVES[name]()) for name in MAPS]
    methods = [page_data.method_data(name, METHODS[name]()) for name in ("gpipe", "ulysses")]
    puzzles = list(PUZZLES.puzzles(WANTED))
    maps += [puzzle["map"] for puzzle in puzzles if "map" in puzzle]
    data = {"targets": [*maps, *methods], "first": "primepar", "puzzles": page_data.packed(puzzles)}
    (folder / "page.html").write_text(page_html("page", data), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where the folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/page.html"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that fails the test where the page logs an error, or asks another host for anything."""
    tab = browser.new_page(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    faults: list[str] = []
    tab.on("console", lambda message: faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("request", lambda request: faults.append(request.url))
    yield tab
    tab.close()
    here = ("file:", "data:", "blob:", "http://127.0.0.1")
    assert [fault for fault in faults if not fault.startswith(here)] == []


def opened(page: Any, address: str) -> None:
    """Open a page and wait for its first picture, and print how long that took."""
    page.goto(address)
    page.wait_for_selector(".chip")
    milliseconds = page.evaluate("performance.now()")
    print(f"first picture of {address.partition(':')[0]}: at most {milliseconds:.0f} ms")


def text(page: Any, selector: str) -> str:
    """The text of an element."""
    shown: str = page.inner_text(selector)
    return shown


def test_a_map_is_broken_and_repaired_on_a_page_from_a_file(page: Any, folder: Path) -> None:
    opened(page, (folder / "page.html").as_uri())
    right = page.input_value("#map-forward")
    assert text(page, ".verdict").startswith("Right on all 6 meshes up to side 6")
    page.fill("#map-forward", WRONG)
    assert text(page, ".verdict") == SENTENCE
    assert text(page, "#label") == "forward t=1"
    assert page.locator(".device.wrong").get_attribute("data-rank") == "0"
    print("a keystroke:", page.get_attribute(".verdict", "data-milliseconds"), "ms")
    page.fill("#map-forward", "M=r, N=(r + c")
    assert text(page, ".verdict") == "forward: expected ), got the end of the line"
    page.fill("#map-forward", right)
    assert text(page, ".verdict").startswith("Right on all 6 meshes")
    page.wait_for_selector(".device.wrong", state="detached")
    page.evaluate("page.show('grid-kept')")
    assert text(page, ".verdict").startswith("Right on all")
    print("a keystroke:", page.get_attribute(".verdict", "data-milliseconds"), "ms")


def test_bytes_count_up_and_blocks_are_explained_over_http(page: Any, address: str) -> None:
    opened(page, address)
    page.click("#on")
    assert text(page, "#label") == "forward t=1"
    sent = page.evaluate("page.scene.amounts.map((now) => now[0].sent)")
    assert sent == sorted(sent)
    assert sent[0] == 0 < sent[-1]
    page.locator("#mesh .chip", has_text=re.compile("^0,1$")).first.hover()
    assert text(page, "#inspector p:nth-child(1)") == "I[0,1] on device 0 (r=0, c=0), forward t=1"
    came, needed = (text(page, f"#inspector p:nth-child({line})") for line in (2, 3))
    assert came == "Came from device 1 during forward t=0: 16 bytes."
    assert needed == "Read here now, for O[0,0]."
    page.locator("#time .bar").last.hover()
    assert page.locator(".line.selected").get_attribute("data-rank") == "3"


def test_a_puzzle_is_solved_and_stays_solved(page: Any, address: str) -> None:
    opened(page, address)
    verdict = "#gallery .verdict"
    page.select_option("#puzzle", "08_ring")
    assert text(page, verdict) == (
        "Nobody goes on: device 0 hangs in send W[0,0] -> 1, and waits for device 1; device 1 "
        "hangs in send W[1,0] -> 2, and waits for device 2; device 2 hangs in send W[2,0] -> 0, "
        "and waits for device 0."
    )
    assert page.locator(".cycle .waits").count() == 3
    page.focus("#gallery li >> nth=0")
    page.keyboard.press("Alt+ArrowDown")
    assert text(page, verdict).startswith("Every device reaches its end")
    page.reload()
    assert "1 of 5 solved" in text(page, "#gallery")
    page.select_option("#puzzle", "receives-deferred")
    first, second = (page.locator("#gallery ol").first.locator("li").nth(place) for place in (0, 1))
    first.drag_to(second)
    assert text(page, verdict).startswith("Every device reaches its end")
    assert "2 of 5 solved" in text(page, "#gallery")


def test_lines_are_put_in_and_taken_out_and_less_work_solves_nothing(
    page: Any, folder: Path
) -> None:
    opened(page, (folder / "page.html").as_uri())
    page.select_option("#puzzle", "step-without-tokens")
    verdict = "#gallery .verdict"
    assert text(page, verdict).startswith("deadlock-freedom is refuted: rank 0, instruction 2")
    assert page.locator("#gallery li.wrong").count() == 1
    lines = page.locator("#gallery ol >> nth=1").locator("li")
    assert lines.nth(2).inner_text() == "left out"
    for place in (3, 4):
        lines.nth(place).focus()
        for _ in range(3):
            page.keyboard.press("Alt+ArrowUp")
        if place == 3:
            assert text(page, verdict).startswith("Not judged by a page from a file")
    assert text(page, verdict) == "Proved: deadlock-freedom, races."
    assert "1 of 5 solved" in text(page, "#gallery")
    page.select_option("#puzzle", "receives-deferred")
    page.select_option("#puzzle", "scaled-before-the-wait")
    page.get_by_text("Show the answer").click()
    assert text(page, verdict) == "Proved: placement, deadlock-freedom, races."
    assert "1 of 5 solved" in text(page, "#gallery")


def test_a_map_is_a_puzzle_that_is_solved_in_the_editor(page: Any, address: str) -> None:
    opened(page, address)
    page.select_option("#puzzle", "07_walk")
    page.get_by_text("Edit it in the map above").click()
    assert text(page, ".verdict").startswith("alignment is refuted: s=3")
    wrong = page.input_value("#map-gradient")
    page.fill("#map-gradient", wrong.replace("t == 1", "t == s - 1"))
    assert "1 of 5 solved" in text(page, "#gallery")


def test_lines_are_moved_by_touch(browser: Any, address: str) -> None:
    """On both devices the wait goes before the line that reads what is in flight."""
    size = {"width": 390, "height": 900}
    tab = browser.new_context(has_touch=True, viewport=size).new_page()
    opened(tab, address)
    tab.select_option("#puzzle", "scaled-before-the-wait")
    touch = tab.context.new_cdp_session(tab)
    for rank in range(2):
        lines = tab.locator("#gallery ol").nth(rank).locator("li")
        lines.nth(2).scroll_into_view_if_needed()
        boxes = [lines.nth(place).bounding_box() for place in (2, 1)]
        points = [{"x": box["x"] + 20, "y": box["y"] + box["height"] / 2} for box in boxes]
        for kind, touched in (("Start", points[:1]), ("Move", points[1:]), ("End", [])):
            touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": touched})
    assert text(tab, "#gallery .verdict") == "Proved: placement, deadlock-freedom, races."
    tab.context.close()


def test_the_keyboard_alone_does_it_all(page: Any, address: str) -> None:
    opened(page, address)
    page.focus("#tick")
    page.keyboard.press("ArrowRight")
    assert text(page, "#label") == "forward t=1"
    page.focus(".device")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert text(page, "#inspector").startswith("dO[1,1] on device 3 (r=1, c=1)")
    page.focus("#target")
    page.keyboard.press("u")
    page.wait_for_function("page.drawn === 'ulysses'")
    page.focus("#play")
    page.keyboard.press("Space")
    page.wait_for_function("page.tick > 1")
    page.keyboard.press("Space")
    assert text(page, "#play") == "Play"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_cuts_anything_and_axe_has_no_serious_finding(
    browser: Any, address: str, scheme: str
) -> None:
    axe = os.environ.get("AXE")
    for width in WIDTHS:
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened(tab, address)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        if axe:
            tab.add_script_tag(path=axe)
            serious = tab.evaluate(
                "axe.run().then((r) => r.violations.filter((v) => /serious|critical/.test("
                "v.impact)).map((v) => [v.id, v.nodes[0].html, v.nodes[0].failureSummary]))"
            )
            assert serious == []
        tab.close()


def test_the_run_of_every_kind_of_target_holds_and_sends_what_the_emulator_counts(
    page: Any, folder: Path
) -> None:
    """The page's own run of a map is compared with the emulator's: what is sent, per device."""
    opened(page, (folder / "page.html").as_uri())
    for name in ("primepar", "summa", "gpipe", "ulysses"):
        page.evaluate(f"page.show('{name}')")
        page.wait_for_function(f"page.target.name === '{name}' && page.drawn === '{name}'")
        assert page.evaluate("page.isEdited") is False
        amounts = page.evaluate("page.scene.amounts.at(-1)")
        target = METHODS[name]() if name in METHODS else PRIMITIVES[name]()
        sent, peak = emulated_amounts(target)
        assert [one["sent"] for one in amounts] == [4 * elements for elements in sent]
        assert [one["peak"] for one in amounts] == [4 * elements for elements in peak]


@pytest.mark.skipif(not PROVER.exists(), reason="no docs/prover: make docs fetches it")
def test_a_map_is_proved_for_every_side_and_two_edits_are_judged_in_the_browser(
    page: Any, folder: Path, address: str
) -> None:
    """The project's own prover and judge, as WebAssembly; a second proof has them loaded."""
    opened(page, address)
    page.click("#prove button")
    assert "primepar verify mine.py:Mine" in text(page, "#prove pre")
    (folder / "prover").symlink_to(PROVER)
    data = {**page.evaluate("page.data"), "prover": "prover", "first": "summa"}
    (folder / "proving.html").write_text(page_html("page", data), encoding="utf-8")
    opened(page, address.replace("page.html", "proving.html"))
    page.select_option("#puzzle", "step-without-tokens")
    for rank in range(2):
        page.locator("#gallery ol").nth(rank).locator("li").first.focus()
        page.keyboard.press("Alt+ArrowDown")
    assert text(page, "#gallery .verdict").startswith("This is more than one change")
    assert page.evaluate("page.prover.worker === undefined")
    for _ in range(2):
        page.click("#prove button")
        page.wait_for_selector("#prove button:not([disabled])", timeout=300_000)
        print("proved in", page.get_attribute("#prove pre", "data-milliseconds"), "ms")
        report = text(page, "#prove pre").splitlines()
        assert report[0] == "mine.py:Mine: proved for every s >= 1 (axes r, c)"
        assert len(report) == 7
    case = CASES["step-without-tokens"].wrong
    moved = [(two, one, *rest) for one, two, *rest in case.programs]
    page.get_by_text("Judge it here").click()
    page.wait_for_selector("#gallery .verdict.wrong")
    judged = judgement(replace(case, programs=tuple(moved)))
    assert text(page, "#gallery .verdict") == judged["text"]


def emulated_amounts(target: Any) -> tuple[list[float], list[int]]:
    """Elements sent and held at most by every device of an emulated run."""
    from primepar.api.drawings import emulated
    from primepar.schedule import Linear, Primitive, Sequence, lower

    if isinstance(target, Primitive):
        sequence = Sequence.of(target, 2)
        run = emulated(lower(sequence, Linear.smallest(sequence.grid)), sequence)
    else:
        run = emulated(target.program(), untimed=target.untimed)
    return [float(elements) for elements in run.sent], run.peak
