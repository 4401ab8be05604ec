"""The step of a workflow and the hook of pre-commit call preflight; the page shows its findings."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from captured import SCRIPTS
from command import run
from mkdocs.utils.yaml import yaml_load

ROOT = Path(__file__).resolve().parents[2]
HEAD_ON = str(ROOT / "docs" / "examples" / "head-on.json")


def test_the_step_hands_its_arguments_on_and_runs_none_as_a_command(tmp_path: Path) -> None:
    """As GitHub's runner does it; `primepar` writes down what it is given, and refutes."""
    action: Any = yaml_load((ROOT / "action.yml").read_text())
    (preflight,) = (one for one in action["runs"]["steps"] if one["name"] == "Preflight")
    text = "--picture 'a picture.svg' 'a program.json' $(touch made) `touch made` ; touch made"
    given = {"inputs.arguments": text, "inputs.sarif": "preflight.sarif"}
    variables = {
        name: given[value.removeprefix("${{").removesuffix("}}").strip()]
        for name, value in preflight["env"].items()
    }
    stand_in = tmp_path / "primepar"
    stand_in.write_text('#!/bin/sh\nfor one; do echo "$one"; done >given; exit 1\n')
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", preflight["run"]],
        cwd=tmp_path, env={**os.environ, **variables, "PATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (tmp_path / "given").read_text().splitlines() == [
        "preflight", "--sarif", "preflight.sarif", "--picture", "a picture.svg",
        "a program.json", "$(touch", "made)", "`touch", "made`", ";", "touch", "made",
    ]  # fmt: skip
    assert not (tmp_path / "made").exists()


def test_the_step_s_command_annotates_and_writes_a_file_for_code_scanning(tmp_path: Path) -> None:
    file, picture = tmp_path / "preflight.sarif", tmp_path / "a picture.svg"
    with patch.dict(os.environ, {"GITHUB_ACTIONS": "true"}):
        done = run("preflight", "--sarif", str(file), "--picture", str(picture), HEAD_ON)
    assert (done.code, picture.exists()) == (1, True), done.err
    assert "::error " in done.out
    (log,) = json.loads(file.read_text())["runs"]
    assert log["results"][0]["ruleId"] == "deadlock-freedom"


def test_the_hook_is_a_command_that_exists() -> None:
    hooks: Any = yaml_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (hook,) = hooks
    name, *arguments = hook["entry"].split()
    assert name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert run(*arguments, HEAD_ON).code == 1


@pytest.fixture(scope="module")
def log() -> Any:
    return json.loads((ROOT / "docs" / "examples" / "stages.sarif").read_text())


def test_the_page_shows_what_preflight_finds(log: Any) -> None:
    (result,) = log["runs"][0]["results"]
    page = (ROOT / "docs" / "preflight.md").read_text()
    assert result["message"]["text"].partition("\n")[0] in page
    annotated = runpy.run_path(str(ROOT / "docs" / "render_annotation.py"))["annotated"]
    drawn = annotated(log, (SCRIPTS / "stages.py").read_text())
    assert drawn == (ROOT / "docs" / "images" / "annotation.svg").read_text()
