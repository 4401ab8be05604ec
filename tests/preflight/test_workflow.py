"""The step of a workflow and the hook of pre-commit call preflight; the page shows its findings."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captured import SCRIPTS
from mkdocs.utils.yaml import yaml_load

ROOT = Path(__file__).resolve().parents[2]
HEAD_ON = ROOT / "docs" / "examples" / "head-on.json"


def step(folder: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the step of action.yml as GitHub's runner does."""
    action: Any = yaml_load((ROOT / "action.yml").read_text())
    steps = action["runs"]["steps"]
    (preflight,) = (one for one in steps if one["name"] == "Preflight")
    given = {"inputs.arguments": arguments, "inputs.sarif": "preflight.sarif"}
    variables = {
        name: given[value.removeprefix("${{").removesuffix("}}").strip()]
        for name, value in preflight["env"].items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", preflight["run"]],
        cwd=folder, env={**os.environ, **variables, "PATH": path}, capture_output=True, text=True,
    )  # fmt: skip


def test_the_step_fails_with_annotations_and_a_file_for_code_scanning(tmp_path: Path) -> None:
    shutil.copy(HEAD_ON, tmp_path / "a program.json")
    done = step(tmp_path, "--picture 'a picture.svg' 'a program.json'")
    assert (done.returncode, (tmp_path / "a picture.svg").exists()) == (1, True), done.stderr
    assert "::error " in done.stdout
    (run,) = json.loads((tmp_path / "preflight.sarif").read_text())["runs"]
    assert run["results"][0]["ruleId"] == "deadlock-freedom"


def test_no_argument_of_the_step_is_run_as_a_command(tmp_path: Path) -> None:
    done = step(tmp_path, "$(touch made) `touch made` ; touch made")
    assert done.returncode == 2
    assert not (tmp_path / "made").exists()


def test_the_hook_is_a_command_that_exists() -> None:
    hooks: Any = yaml_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (hook,) = hooks
    command = [*hook["entry"].split(), str(HEAD_ON)]
    command[0] = str(Path(sys.executable).with_name(command[0]))
    assert subprocess.run(command, capture_output=True).returncode == 1


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
