"""Typical mistakes in a primitive: the first line names the cause in the file, and what to write.

One map is wrong at a time in PrimePar's P2x2, as a learner writes it. The first line is the error,
or the one after the title of the report.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

import primepar

RIGHT = """\
from primepar import Primitive, where


class Mine(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        return dict(M=r, N=(r + c + t) % s, K=c)

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)
"""
FORWARD, BACKWARD, GRADIENT = (
    f"mine.py:{line}: Mine.{phase}: "
    for line, phase in ((7, "forward"), (10, "backward"), (13, "gradient"))
)
KNOWN = (
    "expected names out of axes, virtual, steps, forward, backward, gradient, home, sent, held, "
    "got "
)
NO_DICT = (
    "expected dict(M=..., N=..., K=...), got None, as there is no return: write return the slice "
    "index of each dim that the map splits"
)
AXES = '    axes = ("r", "c")\n'
N = "N=(r + c + t) % s"
SUMS = "(r + c - 1 + where(t == s - 1, 1, 0)) % s"

MISTAKES = {
    # Names
    ("def gradient", "def grad"): f"mine.py:13: Mine.grad: {KNOWN}'grad': write gradient",
    ("def backward", "def bwd"): f"mine.py:10: Mine.bwd: {KNOWN}'bwd': write backward",
    (AXES, f"{AXES}\n    def step(self, s):\n        return s\n"):
        f"mine.py:7: Mine.step: {KNOWN}'step': write steps",
    ("def backward(self, r, c", "def backward(self, c, r"): f"{BACKWARD}expected backward(self, r, "
        "c, t, s), got backward(self, c, r, t, s): write the arguments in this order",
    ("def forward(self, ", "def forward("): f"{FORWARD}expected forward(self, r, c, t, s), got "
        "forward(r, c, t, s): add self",
    (", K=c)", ", K=C)"): "mine.py:8: Mine.forward: expected a map that can be called as "
        "forward(self, r, c, t, s), got NameError: name 'C' is not defined",
    # What is returned
    ("return dict(M=r, N=(r + c + t)", "dict(M=r, N=(r + c + t)"): FORWARD + NO_DICT,
    ("return dict(M=(r + t)", "dict(M=(r + t)"): GRADIENT + NO_DICT,
    (AXES, f"{AXES}\n    def home(self, tensor, r, c, s):\n        return dict(I=dict(M=r, N=c), "
     "W=dict(N=r, K=c))[tensor]\n"): "mine.py:8: Mine.home: expected a map that can be called as "
        "home(self, tensor, r, c, s), got KeyError: 'O': write the home of O",
    # A phase, or a dim of it, left out
    (RIGHT[RIGHT.index("\n    def gradient"):], ""): f"{FORWARD}Mine has no gradient, so that "
        "forward's map is used: write def gradient(self, r, c, t, s)",
    (", K=c)", ")"): f"{FORWARD}forward leaves out K, which backward and gradient split: write "
        "K=...",
    (", K=(c + t) % s)", ")"): f"{BACKWARD}backward leaves out K, which forward and gradient "
        "split: write K=...",
    # A side forgotten
    (N, "N=r + c + t"): f"{FORWARD}N=r + c + t reaches 3 on side 2, at r=1, c=1, t=1: write {N}",
    (N, "N=r + c + t % s"): f"{FORWARD}N=r + c + t % s reaches 3 on side 2, at r=1, c=1, t=1: "
        "write N=(r + c + t % s) % s",
    ("K=(c + t) % s", "K=c + t"): f"{BACKWARD}K=c + t reaches 2 on side 2, at r=0, c=1, t=1: write "
        "K=(c + t) % s",
    ("N=(r + c - 1) % s", "N=r + c - 1"): f"{BACKWARD}expected a slice index of N that is 0 or "
        "more, got -1 at r=0, c=0, t=0, sides (2,): wrap it with % of the side",
    # Off by one, and other ways to compute a product twice
    (N, "N=(r + c + t + 1) % s"): f"{FORWARD}N=(r + c + t + 1) % s is one slice too far: take 1 "
        f"off, or {GRADIENT}N={SUMS} is one slice too short: add 1",
    ("K=(c + t) % s", "K=(c + t + 1) % s"): f"{BACKWARD}K=(c + t + 1) % s is one slice too far: "
        "take 1 off",
    (N, "N=(r + c + 2 * t) % s"): f"{FORWARD}N=(r + c + 2 * t) % s moves by 2 slices at each step, "
        "and is back too early where 2 divides the side: move by 1",
    (f"{N}, K=c", "N=(r + t) % s, K=r"): f"{FORWARD}forward does not use c, so that all devices "
        "along c compute the same: split a dim by c",
    (N, "N=(r + c) % s"): f"{FORWARD}forward does not use t, so that each of the 2 steps of side 2 "
        "computes the same: split a dim by t, or write def steps(self, s): return 1",
    (AXES, f"{AXES}\n    def steps(self, s):\n        return s - 1\n"): "mine.py:7: Mine.steps: "
        "s - 1 steps are too few, as forward computes 4 of 8 sub-operators: take more steps",
}  # fmt: skip
"""What is replaced in `RIGHT`, and by what -> the first line."""


def first_line(text: str, call: str, folder: Path) -> str:
    """The error, or the line after the title of a report that ends with 1."""
    (folder / "mine.py").write_text(text)
    done = run(*call.split())
    if done.code == 2:
        return done.err.removeprefix("primepar: error: ").rstrip()
    assert done.code == 1
    return done.out.splitlines()[1].removeprefix("  likely cause: ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("mistake", "line"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_the_first_line_is_the_cause(mistake: tuple[str, str], line: str, folder: Path) -> None:
    text = RIGHT.replace(*mistake)
    assert text != RIGHT
    assert first_line(text, "check mine.py:Mine --side 2", folder) == line


def test_the_cause_is_in_the_report_of_python_too(folder: Path) -> None:
    mistake = (N, "N=(r + c + 2 * t) % s")
    line = MISTAKES[mistake]
    (folder / "mine.py").write_text(RIGHT.replace(*mistake), encoding="utf-8")
    for side in (None, 2):
        report = primepar.verify("mine.py:Mine", side=side)
        assert report.cause == line
        assert " ".join(str(report).split()).startswith(
            f"mine.py:Mine: refuted likely cause: {line}"
        )


def test_a_mistake_that_four_devices_do_not_show_is_named_by_the_proof(folder: Path) -> None:
    text = RIGHT.replace(N, "N=(r + c + t) % 2")
    assert first_line(text, "verify mine.py:Mine", folder) == (
        f"{FORWARD}N=(r + c + t) % 2 has 2 slices on side 3, and 3 in backward: cut N alike in "
        "every phase"
    )


def test_another_mistake_has_no_such_line(folder: Path) -> None:
    text = RIGHT.replace("where(t == s - 1, 1, 0)", "0")
    assert first_line(text, "check mine.py:Mine --side 2", folder).startswith("  refused  Mine2x2")


def test_a_copy_of_a_method_is_called_by_its_own_name(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from primepar.partition import PrimePar\n\n\nclass Careless(PrimePar):\n"
        "    def gradient(self, r, c, t, s):\n"
        "        return dict(M=(r + t) % s, N=(r + c - 1) % s, K=(c - 1) % s)\n"
    )
    done = run("check", "mine.py:Careless", "--side", "2")
    assert done.out.splitlines()[0] == "Careless2x2 on 4 emulated devices, M=4 N=4 K=4"
