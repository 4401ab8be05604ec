"""The front door: what its examples show, what it takes, and that the commands ask the same."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run
from loaded import loaded_by

import primepar
from primepar import PrimeParError, Primitive, api
from primepar.api.target import AnyTarget
from primepar.models import GPTConfig
from primepar.partition import PrimePar, parse_sequence
from primepar.plan import preset_plan
from primepar.plan.search.explain import explain, words
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule import save_program
from primepar.schedule.sequence import Nesting

NAMES = ("show", "check", "verify", "lower", "simulate", "plan", "price")
MODEL = GPTConfig(layers=1, hidden=16, heads=4, context=8, vocabulary=64)
MINE = """\
from primepar import Primitive


class Mine(Primitive):
    axes = ("r",)

    def forward(self, r, t, s):
        return dict(M=r, N=(r + t) % s)

    def home(self, tensor, r, s):
        return {"I": dict(M=r), "W": dict(N=r), "O": dict(M=r)}[tensor]
"""


def test_the_examples_of_the_docstrings_run() -> None:
    for name in NAMES:
        examples = doctest.DocTestFinder().find(getattr(api, name), name, module=api)
        assert any(test.examples for test in examples), name
        runner = doctest.DocTestRunner(verbose=False)
        failed = [result.failed for result in map(runner.run, examples)]
        assert failed == [0] * len(failed), name


def test_a_question_is_asked_before_and_after_its_package_is_imported() -> None:
    asked = f"assert all(callable(getattr(primepar, name)) for name in {NAMES})"
    loaded_by(f"import primepar; {asked}; import primepar.verify, primepar.plan; {asked}")
    loaded_by(f"from primepar.plan import Plan; import primepar; {asked}; primepar.plan.Plan")
    assert loaded_by("import primepar; primepar.verify") == set()


def test_a_package_that_is_called_has_the_signature_of_its_question() -> None:
    for name in NAMES:
        assert signature(getattr(primepar, name)) == signature(getattr(api, name))
        assert name in dir(primepar)


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError) as caught:
        primepar.parallelise  # type: ignore[attr-defined]  # noqa: B018
    assert str(caught.value) == "module 'primepar' has no attribute 'parallelise'"


def test_a_target_is_a_class_an_object_text_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    program = primepar.lower("P2x2")
    save_program(program, tmp_path / "program.json")
    alike: list[AnyTarget] = [PrimePar, PrimePar(), "primepar"]
    assert [primepar.lower(target, side=2) for target in alike] == [program] * 3
    same: list[AnyTarget] = [
        "P2x2", parse_sequence("P2x2"), program, tmp_path / "program.json",
    ]  # fmt: skip
    assert [primepar.lower(target) for target in same] == [program] * 4
    assert primepar.check(f"{tmp_path / 'mine.py'}:Mine", side=3).equal


def test_a_plan_is_shown_checked_verified_lowered_and_simulated() -> None:
    plan = preset_plan("megatron", MODEL, 2, 2)
    assert str(primepar.show(plan)).startswith("gpt, 1 layer of hidden 16, on 2 devices\n")
    assert primepar.check(plan).equal
    assert primepar.verify(plan).verdict == "proved"
    assert primepar.simulate(plan, "h200-8").seconds > 0
    assert primepar.lower(plan).ranks == 2
    assert primepar.lower(plan, positions=4) != primepar.lower(plan)


def test_a_search_returns_what_the_other_questions_take() -> None:
    result = primepar.plan(MODEL, "h200-8", devices=2, batch=2)
    shown = primepar.show(result)
    assert shown.text == words(explain([replace(result, run=None)]))
    assert shown.svg == primepar.show(result.plan).svg
    assert primepar.verify(result).verdict == "proved"


def test_a_sequence_without_lengths_is_proved_for_every_length() -> None:
    report = primepar.verify("K,P")
    assert (report.verdict, report.scope) == ("proved", "every s1, s2 >= 1 (axes d: s1; r, c: s2)")
    nesting = Nesting((PrimePar(),), ("P",))
    assert primepar.verify(nesting).verdict == "proved"


def test_the_commands_print_the_same() -> None:
    shown = run("show", "primepar", "--side", "2").out
    assert shown == primepar.show(PrimePar, side=2).text
    checked = run("check", "K,P2x2", "--shape", "8,8,8").out
    assert checked == f"{primepar.check('K,P2x2', shape=(8, 8, 8))}\n"
    proof = re.sub(r" +\d+\.\d{3} s$", "", run("verify", "summa").out, flags=re.MULTILINE)
    assert proof == f"{primepar.verify('summa')}\n"


def test_a_drawing_is_text_svg_and_a_file(tmp_path: Path) -> None:
    drawing = primepar.show("P2x2", phase="forward")
    assert str(drawing) == repr(drawing) == drawing.text.rstrip("\n")
    assert "backward" not in drawing.text
    ElementTree.fromstring(drawing._repr_svg_())
    assert drawing.save(tmp_path / "grid.svg") is drawing
    assert (tmp_path / "grid.svg").read_text() == drawing.svg
    drawing.save(tmp_path / "grid.txt")
    assert (tmp_path / "grid.txt").read_text() == drawing.text


def test_a_run_is_drawn_as_a_timeline() -> None:
    emulated = primepar.lower("P2x2", shape=(4, 4, 4))
    timeline = primepar.show(emulate(emulated, memories(emulated)))
    assert "units" in timeline.text.splitlines()[0]
    simulated = primepar.simulate("P2x2", "h200-8", shape=(64, 64, 64))
    assert "us" in primepar.show(simulated).text.splitlines()[0]
    ElementTree.fromstring(timeline.svg)


def test_a_report_reads_as_text_and_not_as_its_certificate() -> None:
    report = primepar.verify(PrimePar, side=2)
    assert repr(report) == str(report)
    assert str(report).startswith("PrimePar: proved\n  coverage          proved\n")


class NoMap(Primitive):
    axes = ("r",)


class Late(Primitive):
    def __init__(self, argument: int) -> None:
        self.argument = argument


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: primepar.show(3),  # type: ignore[arg-type]
     "expected a primitive, a sequence, a program, a plan, or text that names one, like "
     "'primepar', 'K,P2x2' or 'mine.py:Mine', got int 3"),
    (lambda: primepar.show("primepar"),
     "primepar: expected the length of side s, 1 or more, got none: write side=2"),
    (lambda: primepar.check("primepar", side=0),
     "side: expected the length of side s, 1 or more, got 0: write side=2"),
    (lambda: primepar.check("tesseract"),
     "tesseract: expected the lengths of sides q, d, each 1 or more, got none: write side=(2, 3)"),
    (lambda: primepar.check("P2x2", side=2),
     "P2x2: expected no side, as a sequence has its own mesh, got side=2: leave it out"),
    (lambda: primepar.lower("P2x2", shape=(3, 3)),
     "shape: expected M,N,K or B,M,N,K, got (3, 3): write it like shape=(8, 8, 8)"),
    (lambda: primepar.show("P2x2", phase="sideways"),
     "phase: expected one of forward, backward, gradient, got 'sideways'"),
    (lambda: primepar.check("P2x2", batch=2),
     "P2x2: expected no batch, which only the training step of a plan has, got batch=2: leave it "
     "out"),
    (lambda: primepar.check(preset_plan("data", MODEL, 2), side=2),
     "plan: expected no side, as a plan has its own sequences, got side=2: leave it out"),
    (lambda: primepar.lower(primepar.lower("P2x2"), shape=(4, 4, 4)),
     "program: expected no shape, as a program names its own, got shape=(4, 4, 4): write it into "
     'the file, "shape": {"M": 4, "N": 4, "K": 4}'),
    (lambda: primepar.lower(primepar.lower("P2x2"), phase="forward"),
     "program: expected no phase, as a program is read as given, got phase='forward': leave it "
     "out"),
    (lambda: primepar.verify("primepar", buffered=True),
     "primepar: expected no buffered, as what a map moves is posted at once and needs no buffer, "
     "got buffered=True: leave it out"),
    (lambda: primepar.check(Nesting((PrimePar(), PrimePar()), ("P", "P"))),
     "P,P: expected a length for each primitive, got none: write them like P2x2,P2x2"),
    (lambda: primepar.verify(NoMap),
     "NoMap.forward: expected a method forward(self, r, t, s), got none: write it, the other "
     "phases have its map unless they have their own"),
    (lambda: primepar.verify(Late),
     "Late: expected a class that can be called without arguments, got TypeError: "
     "Late.__init__() missing 1 required positional argument: 'argument'"),
    (lambda: primepar.simulate("P2x2", "h200-8"),
     "P2x2: expected the operator's shape, of which its time is, got none: write "
     "shape=(4096, 4096, 4096)"),
    (lambda: primepar.show("P2x2").save("picture.png"),
     "save: expected a name that ends with .svg or .txt, got picture.png"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "message"), WRONG)
def test_what_does_not_fit_is_refused_in_one_line(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(PrimeParError) as caught:
        ask()
    assert str(caught.value) == message
