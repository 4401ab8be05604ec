"""`make gpu` states in one line what a machine lacks, and its table counts what ran."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import gpu_suite
import lowered_steps
import pytest
import torch
from gpu_suite import MissingError, check_gpu, check_python, install, missing, rows, table

XML = """<testsuites><testsuite>
<testcase classname="tests.test_gpu_models" name="a" time="1.5"/>
<testcase classname="tests.test_gpu_models" name="b" time="2"><failure/></testcase>
<testcase classname="tests.test_gpu_blocks" name="c" time="0.5"><skipped/></testcase>
<testcase classname="tests.test_gpu_blocks" name="d" time="0.25"><properties>
<property name="ratio" value="1.100"/></properties></testcase>
</testsuite></testsuites>"""


def message_of(call: object, *arguments: object) -> str:
    assert callable(call)
    with pytest.raises(MissingError) as caught:
        call(*arguments)
    return str(caught.value)


def test_an_old_python_is_refused() -> None:
    check_python((3, 11))
    assert message_of(check_python, (3, 10, 2)) == (
        "expected Python 3.11 or newer, got 3.10: name another one, make gpu PYTHON=python3.12"
    )


def test_what_is_not_there_is_missing() -> None:
    assert missing() == []
    assert missing(lambda name: name not in ("msgspec", "z3")) == ["msgspec", "z3-solver"]
    assert message_of(missing, lambda name: name != "torch") == (
        f"expected torch in {sys.executable}, found none: name a Python that has it, "
        "make gpu PYTHON=.venv/bin/python after make demo"
    )


def test_without_the_wheels_it_names_the_command_that_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_suite, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(gpu_suite, "SITE", tmp_path / "site")
    install([])
    advice = (
        f"run make wheels FOR={sys.version_info[0]}.{sys.version_info[1]} NAMES='msgspec' where "
        "there is a registry, and copy the folder wheels/ here"
    )
    assert message_of(install, ["msgspec"]) == (
        f"expected msgspec in {sys.executable}, found none: {advice}"
    )
    (tmp_path / "wheels").mkdir()
    assert message_of(install, ["msgspec"]) == (
        f"expected wheels of msgspec in {tmp_path / 'wheels'}, got others: {advice}"
    )
    assert not (tmp_path / "site").exists()


def test_answers_are_carried_while_the_code_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_suite, "OUT", tmp_path)
    (tmp_path / "answers-of-other-code").mkdir()
    monkeypatch.setenv(lowered_steps.CARRIED, str(gpu_suite.answers(anew=True)))
    assert [path.name for path in tmp_path.iterdir()] == [gpu_suite.answers(anew=False).name]
    for carried, answers in ((True, [1, 1]), (False, [3, 3])):
        numbers = iter((1, 2, 3, 4)) if carried else iter((3, 4))
        asked = b"a question of this test"
        ask = partial(lowered_steps.shared, asked, partial(next, numbers), carried=carried)
        assert [ask(), ask()] == answers
    gpu_suite.answers(anew=True)
    monkeypatch.delenv(lowered_steps.CARRIED)


def test_a_machine_without_a_gpu_is_refused() -> None:
    with patch("torch.cuda.is_available", return_value=False):
        assert message_of(check_gpu) == (
            f"expected a GPU that torch {torch.__version__} can use, found none: look at "
            "nvidia-smi, or run the same cases on CPUs with make gpu ON=--cpu"
        )


def test_the_table_counts_every_file(tmp_path: Path) -> None:
    (tmp_path / "results.xml").write_text(XML)
    counted = rows(tmp_path / "results.xml")
    assert counted == [("test_gpu_blocks", 1, 0, 1, 0.75), ("test_gpu_models", 1, 1, 0, 3.5)]
    part = {
        "part": "models", "code": 1, "rows": counted,
        "measured": gpu_suite.measured(tmp_path / "results.xml"),
    }  # fmt: skip
    hung = {"part": "trainer", "code": gpu_suite.TIMED_OUT, "rows": [], "measured": []}
    lines = table([part, hung], "here").splitlines()
    assert lines[0].endswith(", here")
    assert lines[2:] == [
        "| file | passed | failed | skipped | seconds |",
        "|---|---|---|---|---|",
        "| test_gpu_blocks | 1 | 0 | 1 | 1 |",
        "| test_gpu_models | 1 | 1 | 0 | 4 |",
        "",
        "ratio: 1.100",
        "trainer: did not end within 150 s",
    ]


def test_every_file_of_tests_for_a_gpu_has_its_part() -> None:
    named = {name for _, files in gpu_suite.PARTS.values() for name in files}
    folder = Path(__file__).parent
    marked = {path.stem for path in folder.glob("test_gpu_*.py")} - {"test_gpu_suite"}
    assert marked <= named
    assert all((folder / f"{name}.py").is_file() for name in named)
