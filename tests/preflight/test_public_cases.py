"""Public cases: each wrong program is refuted by its property, each fixed one is proved."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run
from oracle.explore import explore
from script_module import load

from primepar.commands.exercise_catalog import QUESTIONS
from primepar.preflight.cases import CASES, PublicCase
from primepar.reference.check import check_program
from primepar.schedule.program import Group, Program, Recv, Send
from primepar.verify import verify_program
from primepar.verify.report import PROPERTIES

ROOT = Path(__file__).resolve().parents[2]
ALL = tuple(CASES.values())
UNSEEN = "traffic"
"""The property without which the emulator computes the right numbers all the same."""


def test_there_are_thirty_with_every_property_and_each_has_a_story_and_a_lesson() -> None:
    assert len(ALL) == 30
    assert {case.refuted for case in ALL} == set(PROPERTIES)
    for case in ALL:
        assert case.threads
        assert all(re.fullmatch(r"[\w-]+/[\w.-]+(#\d+|:[\w./]+)", text) for text in case.threads)
        assert case.title
        assert case.story
        assert len(re.findall(r"[.](?= |$)", case.lesson)) == 2, case.name


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_prover_explorer_and_emulator_agree_on_what_is_wrong_and_what_is_fixed(
    case: PublicCase,
) -> None:
    wrong, fixed = (verify_program(program, case.name) for program in (case.wrong, case.fixed))
    refuted = {result.name for result in wrong.properties if result.verdict == "refuted"}
    explored = explore(case.wrong)
    assert case.refuted in refuted
    assert refuted == {name for name in explored.in_order if explored.verdict(name) == "refuted"}
    assert fixed.verdict == explore(case.fixed).overall == "proved"
    assert check_program(case.fixed).equal
    assert check_program(case.wrong).equal == (case.refuted == UNSEEN)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_both_programs_answer_the_same_question(case: PublicCase) -> None:
    """Only the instructions differ: the fixed program is not asked for less."""
    for field in QUESTIONS:
        assert getattr(case.wrong, field) == getattr(case.fixed, field), field
    assert case.wrong.programs != case.fixed.programs


def test_the_page_has_every_case_with_its_report_and_its_picture(tmp_path: Path) -> None:
    renderer = load(ROOT / "docs" / "render_cases.py")
    page = "\n".join(renderer.page(tmp_path))
    for case in ALL:
        assert f"{{ #{case.name} }}" in page
        assert f"```text\ncase:{case.name}: refuted\n" in page
        ElementTree.parse(tmp_path / f"{case.name}.svg")
    assert page.count("\nThe smallest reordering that makes it pass:\n\n```text\non rank") == 5
    assert "[NVIDIA/Megatron-LM#1446](https://github.com/NVIDIA/Megatron-LM/issues/1446)" in page
    assert "](https://github.com/hpcaitech/ColossalAI/blob/main/colossalai/legacy/" in page


def test_a_batch_of_messages_to_two_stages_is_out_of_reach() -> None:
    """Its messages make progress by themselves here, so that what hung elsewhere is proved."""
    last = Group((Recv(0, "skip"), Recv(1, "y")))
    first, middle = Group((Send(1, "x"), Send(2, "skip"))), (Recv(0, "x"), Send(2, "y"))
    program = Program("primepar-program", 1, 3, ((first,), middle, (last,)))
    assert verify_program(program, "skip").verdict == "proved"


def test_cases_are_targets_of_the_commands() -> None:
    listed = run("list", "--cases").out
    assert listed.count("\ncase:") + listed.startswith("case:") == 30
    assert "  thread    vllm-project/vllm#43547\n" in listed
    assert run("verify", "case:norm-averaged").code == 1
    assert run("verify", "case:norm-averaged:fixed").code == 0


@pytest.mark.parametrize(
    ("name", "fix"),
    [("norm-average", "write case:norm-averaged"), ("x", "primepar list --cases prints them")],
)
def test_a_misspelt_case_is_one_line(name: str, fix: str) -> None:
    done = run("verify", f"case:{name}")
    message = f"case:{name}: expected case:NAME of a public case, got '{name}': {fix}"
    assert (done.code, done.err.strip()) == (2, f"primepar: error: {message}")
